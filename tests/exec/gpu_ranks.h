// Doubles of GPUs for ranks that are threads: what the library opens in place of a real GPU while
// this lives.
#pragma once

#include <memory>

#include "tests/api/device.h"
#include "tests/exec/gpu_double.h"

namespace moeccl::test {

class GpusOfRanks {
 public:
  explicit GpusOfRanks(GpuWorld& world);
  ~GpusOfRanks();
  GpusOfRanks(const GpusOfRanks&) = delete;
  GpusOfRanks& operator=(const GpusOfRanks&) = delete;
};

// The device of the rank that is this thread, made for the world of the day when it is first asked
// for.
GpuDouble& myGpu();
// The same for tests that real GPUs run too.
std::unique_ptr<Device> myDevice();

}  // namespace moeccl::test
