// Doubles of GPUs for ranks that are threads: what the library opens in place of a real GPU while this lives.
#pragma once

#include "tests/exec/gpu_double.h"

namespace moeccl::test {

class GpuRanks {
 public:
  explicit GpuRanks(GpuWorld& world);
  ~GpuRanks();
  GpuRanks(const GpuRanks&) = delete;
  GpuRanks& operator=(const GpuRanks&) = delete;
};

// The device of the rank that is this thread, made for the world of the day when it is first asked for.
GpuDouble& myGpu();

}  // namespace moeccl::test
