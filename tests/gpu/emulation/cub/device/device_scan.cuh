// In place of CUB's header.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>

namespace cub {

struct DeviceScan {
  // As CUB: without memory it says how much it takes, with less it refuses. Spoils what it takes.
  template <typename T>
  static cudaError_t ExclusiveSum(void* memory, std::size_t& bytes, const T* from, T* to,
                                  std::int64_t items, cudaStream_t stream = nullptr) {
    constexpr std::size_t kBytes = 767;
    if (memory == nullptr) return bytes = kBytes, cudaSuccess;
    if (bytes < kBytes) return cudaErrorInvalidValue;
    cudaMemsetAsync(memory, 0xc3, kBytes, stream);  // CUB has a first kernel there
    void (*const kernel)(const T*, T*, std::int64_t) = [](const T* from, T* to,
                                                          std::int64_t items) {
      T sum{};
      for (std::int64_t i = 0; i < items; ++i) to[i] = sum, sum += from[i];
    };
    void* parameters[] = {&from, &to, &items};
    return cudaLaunchKernel(kernel, 1, 1, parameters, 0, stream);
  }
};

}  // namespace cub
