// What launchers of kernels share. For *_cuda.cu and runtime_cuda.cc alone.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

#include "src/base/error.h"

namespace moeccl::cuda {

constexpr int kThreads = 256;  // of every block
// At least, of kernels that need registers: without a number compilers make room for more, and
// spill for it.
constexpr int kBlocksPerProcessor = 2;

// `what` names the call or the kernel.
inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  const std::string text = cudaGetErrorString(status);
  cudaGetLastError();  // it has been told now
  if (status == cudaErrorInsufficientDriver || status == cudaErrorNoDevice)
    throw Error(moecclUnhandledCudaError, "no usable CUDA driver: " + text);
  throw Error(moecclUnhandledCudaError, std::string(what) + ": " + text);
}

inline cudaStream_t streamOf(void* stream) { return static_cast<cudaStream_t>(stream); }

// As many blocks as there are, up to what a grid takes; kernels go through the rest in strides.
inline unsigned gridOf(std::uint64_t blocks) {
  return static_cast<unsigned>(std::min<std::uint64_t>(blocks, 0x7fffffff));
}

// What blocks of a launch have.
struct BlockShape {
  unsigned threads;
  std::size_t sharedBytes;  // beside what kernels declare; 48 KiB in all, sharedMemory() has them

  BlockShape(std::int64_t threads, std::int64_t sharedBytes = 0)
      : threads(static_cast<unsigned>(threads)),
        sharedBytes(static_cast<std::size_t>(sharedBytes)) {}
};

#ifdef __CUDACC__
// Begins at a multiple of 16. Emulated, the runtime has this function.
__device__ inline std::byte* sharedMemory() {
  extern __shared__ int4 memoryOfBlock[];
  return reinterpret_cast<std::byte*>(memoryOfBlock);
}
#endif

// Enqueues kernel(arguments...) for blocks x threads. `what` says in errors what it does. Kernels
// are launched by this alone, in a syntax that compilers for hosts can read too, so that tests run
// them without a GPU (tests/gpu/emulation).
template <typename... Parameters>
void launchKernel(const char* what, void (*kernel)(Parameters...), dim3 blocks, BlockShape shape,
                  void* stream, const std::type_identity_t<Parameters>&... arguments) {
  const void* addresses[] = {&arguments...};
  check(cudaLaunchKernel(kernel, blocks, dim3(shape.threads), const_cast<void**>(addresses),
                         shape.sharedBytes, streamOf(stream)),
        what);
}

}  // namespace moeccl::cuda
