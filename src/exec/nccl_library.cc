// Opens libnccl.so.2 by dlopen(3), and refuses one that is too old.
#include "src/exec/nccl_library.h"

#include <dlfcn.h>

#include <type_traits>

#include "src/base/error.h"
#include "src/base/text.h"

namespace moeccl {
namespace {

constexpr const char* kName = "libnccl.so.2";

// 22809 -> 2.28.9
std::string versionText(int version) {
  return stringf("%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace

NcclLibrary openNccl() {
  // Never closed: its threads may outlive us.
  void* const library = dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    throw Error(
        moecclSystemError,
        stringf("GPU communicators need NCCL %s or later, and %s cannot be opened: %s; install "
                "it, or put its folder into LD_LIBRARY_PATH",
                versionText(kOldestNccl).c_str(), kName, dlerror()));
  NcclLibrary nccl;
  const char* missing = nullptr;
  const auto find = [&](const char* name) {
    void* const function = dlsym(library, name);
    if (function == nullptr && missing == nullptr) missing = name;
    return function;
  };
#define MOECCL_NCCL_FIND(function) \
  nccl.function = reinterpret_cast<decltype(nccl.function)>(find(#function));
  MOECCL_NCCL_FUNCTIONS(MOECCL_NCCL_FIND)
#undef MOECCL_NCCL_FIND
  const auto findNewer = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
  };
  findNewer(nccl.ncclAlltoAll, "ncclAlltoAll");
  findNewer(nccl.ncclCommRevoke, "ncclCommRevoke");
  findNewer(nccl.ncclMemAlloc, "ncclMemAlloc");
  findNewer(nccl.ncclMemFree, "ncclMemFree");
  findNewer(nccl.ncclCommRegister, "ncclCommRegister");
  findNewer(nccl.ncclCommDeregister, "ncclCommDeregister");
  if (nccl.ncclGetVersion != nullptr) nccl.ncclGetVersion(&nccl.version);
  if (nccl.version < kOldestNccl || missing != nullptr)
    throw Error(moecclSystemError,
                stringf("%s is NCCL %s%s%s; GPU communicators need %s or later", kName,
                        versionText(nccl.version).c_str(), missing == nullptr ? "" : " without ",
                        missing == nullptr ? "" : missing, versionText(kOldestNccl).c_str()));
  return nccl;
}

}  // namespace moeccl
