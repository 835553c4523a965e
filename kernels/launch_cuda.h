// What launchers of kernels share. For *_cuda.cu and runtime_cuda.cc alone.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "src/error.h"

namespace moeccl::cuda {

constexpr int kThreads = 256;  // of every block

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

}  // namespace moeccl::cuda
