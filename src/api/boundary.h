// The one place where exceptions become result codes, and where texts of errors are kept.
#pragma once

#include <exception>
#include <new>
#include <string>

#include "moeccl/moeccl.h"
#include "src/error.h"

namespace moeccl {

// The text that moecclGetLastError(NULL) returns on this thread.
std::string& threadError();

// "moecclAllToAll: count ..."
moecclResult_t report(const char* function, moecclResult_t result, const char* text,
                      std::string* lastError) noexcept;

// Runs a function's body. The text of an error goes to *lastError, and to the thread's.
template <typename Body>
moecclResult_t boundary(const char* function, std::string* lastError, Body&& body) noexcept {
  try {
    body();
    return moecclSuccess;
  } catch (const Error& e) {
    return report(function, e.result(), e.what(), lastError);
  } catch (const std::bad_alloc&) {
    return report(function, moecclSystemError, "out of memory", lastError);
  } catch (const std::exception& e) {
    return report(function, moecclInternalError, e.what(), lastError);
  }
}

inline void require(bool condition, const char* text) {
  if (!condition) throw Error(moecclInvalidArgument, text);
}

}  // namespace moeccl
