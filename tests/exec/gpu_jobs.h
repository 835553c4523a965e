// Jobs whose ranks are threads, each with a double of a GPU, for GoogleTest.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "tests/api/ranks.h"
#include "tests/exec/gpu_ranks.h"

namespace moeccl::test {

// All GPUs that there are while it lives. What the doubles have found fault with then, or are left
// with, fails the test.
class GpusOfJobs {
 public:
  explicit GpusOfJobs(const GpuWorld::Options& options) : world(options) {}
  ~GpusOfJobs() {
    // What has been aborted may still be freed.
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(90);
    for (world.run(); !world.leftovers().empty(); world.run()) {
      if (std::chrono::steady_clock::now() > end) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(world.problems(), "");
    EXPECT_EQ(world.stuck(), "");
    EXPECT_EQ(world.leftovers(), "");
  }

  void run(Job job, const RankFunction& function) {
    job.memory = moecclMemoryCuda;
    runJob(job, function);
  }

  GpuWorld world;

 private:
  const GpusOfRanks gpus_{world};
};

}  // namespace moeccl::test
