// The functions of NCCL, from the libnccl.so.2 of this process: one that is loaded already, or the
// one that the dynamic linker finds. So libmoeccl loads on hosts without NCCL too.
#pragma once

#include <nccl.h>

namespace moeccl {

// The oldest NCCL that has all of these: ncclCommSplit came with it.
inline constexpr int kOldestNccl = NCCL_VERSION(2, 18, 0);

#define MOECCL_NCCL_FUNCTIONS(X) \
  X(ncclGetVersion)              \
  X(ncclGetErrorString)          \
  X(ncclGetLastError)            \
  X(ncclGetUniqueId)             \
  X(ncclCommInitRankConfig)      \
  X(ncclCommSplit)               \
  X(ncclCommDestroy)             \
  X(ncclCommAbort)               \
  X(ncclCommGetAsyncError)       \
  X(ncclCommCount)               \
  X(ncclCommUserRank)            \
  X(ncclCommCuDevice)            \
  X(ncclGroupStart)              \
  X(ncclGroupEnd)                \
  X(ncclSend)                    \
  X(ncclRecv)                    \
  X(ncclAllGather)               \
  X(ncclReduceScatter)           \
  X(ncclAllReduce)

struct NcclLibrary {
#define MOECCL_NCCL_MEMBER(function) decltype(&::function) function = nullptr;
  MOECCL_NCCL_FUNCTIONS(MOECCL_NCCL_MEMBER)
#undef MOECCL_NCCL_MEMBER
  // From 2.28 on, else null; whichever header this is compiled with.
  ncclResult_t (*ncclAlltoAll)(const void*, void*, size_t, ncclDataType_t, ncclComm_t,
                               cudaStream_t) = nullptr;
  // From 2.28.7 on, else null.
  ncclResult_t (*ncclCommRevoke)(ncclComm_t, int) = nullptr;
  // From 2.19 on, else all null.
  ncclResult_t (*ncclMemAlloc)(void**, size_t) = nullptr;
  ncclResult_t (*ncclMemFree)(void*) = nullptr;
  ncclResult_t (*ncclCommRegister)(ncclComm_t, void*, size_t, void**) = nullptr;
  ncclResult_t (*ncclCommDeregister)(ncclComm_t, void*) = nullptr;
  int version = 0;  // as NCCL_VERSION_CODE

  bool registers() const {
    return ncclMemAlloc != nullptr && ncclMemFree != nullptr && ncclCommRegister != nullptr &&
           ncclCommDeregister != nullptr;
  }
};

// Throws Error with moecclSystemError: there is none, or it is too old.
NcclLibrary openNccl();

}  // namespace moeccl
