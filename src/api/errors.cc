#include "src/api/handles.h"

namespace {

// The text that moecclGetLastError(NULL) returns on this thread.
std::string& threadError() {
  thread_local std::string text;
  return text;
}

}  // namespace

moecclResult_t moecclInternalReport(const char* function, moecclResult_t result,
                                    const char* text) noexcept {
  try {
    threadError() = function == nullptr ? text : std::string(function) + ": " + text;
  } catch (const std::bad_alloc&) {
    // The code still says what kind of error it was.
  }
  return result;
}

moecclResult_t moecclGetVersion(int* version) {
  return moeccl::boundary("moecclGetVersion", nullptr, [&] {
    moeccl::require(version != nullptr, "version is NULL; pass where to store it");
    *version = MOECCL_VERSION;
  });
}

const char* moecclGetErrorString(moecclResult_t result) {
  switch (result) {
    case moecclSuccess:
      return "success";
    case moecclUnhandledCudaError:
      return "a CUDA call failed";
    case moecclSystemError:
      return "the system or a transport refused something";
    case moecclInternalError:
      return "internal error of moeccl";
    case moecclInvalidArgument:
      return "an argument is wrong";
    case moecclInvalidUsage:
      return "right arguments, but not here or not the same on all ranks";
    case moecclRemoteError:
      return "another rank failed, aborted, or called with other arguments";
    case moecclInProgress:
      return "not complete yet";
    case moecclTimeout:
      return "peers did not do their part in time";
    default:
      return "unknown result code";
  }
}

const char* moecclGetLastError(moecclComm_t comm) {
  const moeccl::HeldComm held = moeccl::hold(comm);
  return held.state == nullptr ? threadError().c_str() : held->lastError.c_str();
}
