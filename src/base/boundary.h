// The one place where exceptions become result codes, and where texts of errors are kept.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <vector>

#include "src/base/error.h"
#include "src/base/text.h"

namespace moeccl {

// The text that moecclGetLastError(NULL) returns on this thread.
std::string& threadError();

// Keeps the text of an error, "moecclAllToAll: count ...", for the thread and in *lastError, and
// returns `result`.
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

// Throws Error where a call of the public API has failed, with the text that it left.
inline void requireSuccess(moecclResult_t result) {
  if (result != moecclSuccess) throw Error(result, moecclGetLastError(nullptr));
}

// The element that a caller asks for by its index.
template <typename T>
const T& elementAt(const std::vector<T>& all, int index, const char* argument, const char* what) {
  if (index < 0 || static_cast<std::size_t>(index) >= all.size())
    throw Error(moecclInvalidArgument, stringf("%s is %d; there are %zu %s, counted from 0",
                                               argument, index, all.size(), what));
  return all[static_cast<std::size_t>(index)];
}

}  // namespace moeccl
