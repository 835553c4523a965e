// Keeps the texts of errors: one for each thread, and one for each communicator.
#include "src/base/boundary.h"

#include <mutex>

#include "src/base/fork.h"

namespace moeccl {
namespace {

// Guards the texts of communicators: several threads may fail to make subsets of one. Never
// destroyed: threads may outlive main().
std::mutex& textsMutex() {
  static std::mutex& mutex = *[] {
    auto* const made = new std::mutex;
    atFork({[] { textsMutex().lock(); }, [] { textsMutex().unlock(); }, nullptr});
    return made;
  }();
  return mutex;
}

}  // namespace

std::string& threadError() {
  thread_local std::string text;
  return text;
}

moecclResult_t report(const char* function, moecclResult_t result, const char* text,
                      std::string* lastError) noexcept {
  try {
    threadError() = std::string(function) + ": " + text;
    if (lastError == nullptr) return result;
    const std::lock_guard lock(textsMutex());
    *lastError = threadError();
  } catch (const std::bad_alloc&) {
    // The code still says what kind of error it was.
  }
  return result;
}

}  // namespace moeccl
