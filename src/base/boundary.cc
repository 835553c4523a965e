// Keeps the texts of errors: one for each thread, and one for each communicator.
#include "src/base/boundary.h"

namespace moeccl {

std::string& threadError() {
  thread_local std::string text;
  return text;
}

moecclResult_t report(const char* function, moecclResult_t result, const char* text,
                      std::string* lastError) noexcept {
  try {
    threadError() = std::string(function) + ": " + text;
    if (lastError != nullptr) *lastError = threadError();
  } catch (const std::bad_alloc&) {
    // The code still says what kind of error it was.
  }
  return result;
}

}  // namespace moeccl
