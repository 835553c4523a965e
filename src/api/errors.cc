// The version of the library, and the texts of result codes and of last errors.
#include "src/api/handles.h"

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
  return (held.communicator == nullptr ? moeccl::threadError() : held->lastError()).c_str();
}
