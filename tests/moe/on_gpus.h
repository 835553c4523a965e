// Layers on doubles of GPUs, for GoogleTest.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/exec/gpu_jobs.h"
#include "tests/moe/on_device.h"

namespace moeccl::test {

struct GpusOfTest {
  unsigned seed = 1;
  bool oneQueue = false;
  std::string algorithms = "";
  std::vector<GpuCall>* calls = nullptr;  // what the devices were asked for
};

using OnGrid = std::function<void(Device& device, moecclGrid_t grid, int rank)>;

inline void onGpus(const Problem& problem, const GpusOfTest& how, const OnGrid& function) {
  SCOPED_TRACE(problem.text());
  GpusOfJobs gpus({.seed = how.seed, .oneQueue = how.oneQueue, .threads = true, .ownMemory = true});
  Job job = jobOf(problem);
  job.algorithms = how.algorithms;
  gpus.run(job, [&](moecclComm_t comm, int rank) {
    moecclGrid_t grid = makeGrid(comm, problem.grid);
    function(*myDevice(), grid, rank);
    check(moecclGridDestroy(grid));
  });
  if (how.calls != nullptr) *how.calls = gpus.world.calls();
}

}  // namespace moeccl::test
