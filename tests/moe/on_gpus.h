// Layers on doubles of GPUs, for GoogleTest.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/exec/gpu_ranks.h"
#include "tests/moe/on_device.h"

namespace moeccl::test {

struct GpusOfTest {
  unsigned seed = 1;
  bool oneQueue = false;
  std::string algorithms = "";
  std::vector<std::string>* calls = nullptr;  // what the devices were asked for
};

using OnGrid = std::function<void(Device& device, moecclGrid_t grid, int rank)>;

// Calls the function on ranks with GPUs that are all there is in the world; what the doubles found
// fault with fails the test.
inline void onGpus(const Problem& problem, const GpusOfTest& how, const OnGrid& function) {
  SCOPED_TRACE(problem.text());
  GpuWorld world({.seed = how.seed, .oneQueue = how.oneQueue, .threads = true, .ownMemory = true});
  {
    const GpusOfRanks gpus(world);
    Job job = jobOf(problem);
    job.memory = moecclMemoryCuda;
    job.algorithms = how.algorithms;
    runJob(job, [&](moecclComm_t comm, int rank) {
      moecclGrid_t grid = makeGrid(comm, problem.grid);
      function(*myDevice(), grid, rank);
      check(moecclGridDestroy(grid));
    });
  }
  world.run();
  if (how.calls != nullptr) *how.calls = world.calls();
  EXPECT_EQ(world.problems(), "");
  EXPECT_EQ(world.stuck(), "");
  EXPECT_EQ(world.leftovers(), "");
}

}  // namespace moeccl::test
