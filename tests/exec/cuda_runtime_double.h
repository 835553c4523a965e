// Stands in for the functions of the CUDA runtime that src/exec/nccl_gpu.cc and
// kernels/runtime_cuda.cc call: a device without work, whose streams may be in a capture, and which
// refuses what a real one refuses then. What it is given for a graph it keeps until the test
// destroys the graph.
#pragma once

#include <cuda_runtime.h>

#include <vector>

namespace moeccl::test {

struct CudaRuntimeDouble {
  // A thread captures in the global mode: who has not said otherwise may call nothing that may
  // wait.
  bool capturedGlobally = false;
  cudaError_t captureInfo = cudaSuccess;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  int allocations = 0;

  void destroyGraph();

  struct Kept {
    void* what;
    cudaHostFn_t destroy;
  };
  std::vector<Kept> created, retained;
};

// The one runtime of this process.
CudaRuntimeDouble& cudaRuntime();

}  // namespace moeccl::test
