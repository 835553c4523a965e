// Times on a GPU.
#pragma once

#include <algorithm>
#include <vector>

#include "tests/gpu/check.h"

namespace moeccl::gpu {

// Milliseconds of a call of `work`: the median of some measurements of several calls each.
template <typename Function>
double milliseconds(Function work) {
  constexpr int kMeasurements = 9, kCalls = 20;
  cudaEvent_t begin, end;
  cuda(cudaEventCreate(&begin), "an event");
  cuda(cudaEventCreate(&end), "an event");
  for (int i = 0; i < 3; ++i) work();
  std::vector<float> times(kMeasurements);
  for (float& time : times) {
    cuda(cudaEventRecord(begin), "an event");
    for (int i = 0; i < kCalls; ++i) work();
    cuda(cudaEventRecord(end), "an event");
    cuda(cudaEventSynchronize(end), "waiting");
    cuda(cudaEventElapsedTime(&time, begin, end), "a time");
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::nth_element(times.begin(), times.begin() + kMeasurements / 2, times.end());
  return static_cast<double>(times[kMeasurements / 2]) / kCalls;
}

}  // namespace moeccl::gpu
