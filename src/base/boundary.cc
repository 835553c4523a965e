// Keeps the texts of errors: one for each thread, and one for each communicator.
#include "src/base/boundary.h"

#include <mutex>

namespace moeccl {

std::string& threadError() {
  thread_local std::string text;
  return text;
}

moecclResult_t report(const char* function, moecclResult_t result, const char* text,
                      std::string* lastError) noexcept {
  try {
    threadError() = std::string(function) + ": " + text;
    if (lastError == nullptr) return result;
    // Several threads may fail to make subsets of one communicator.
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    *lastError = threadError();
  } catch (const std::bad_alloc&) {
    // The code still says what kind of error it was.
  }
  return result;
}

}  // namespace moeccl
