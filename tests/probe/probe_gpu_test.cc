// GPU jobs without a profile: as on hosts, with doubles of GPUs. Their messages take what a model
// of links says, however busy the machine is.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "src/probe/probe.h"
#include "tests/exec/gpu_jobs.h"
#include "tests/probe/probing.h"

namespace moeccl::test {
namespace {

class GpuProbe : public Probing, public GpusOfJobs {
 protected:
  GpuProbe() : GpusOfJobs({.seed = 7, .threads = true}) {
    replaceProbeTime([] {
      return TimePoint(std::chrono::duration_cast<Clock::duration>(
          std::chrono::duration<double>(myGpu().secondsOfMessages())));
    });
  }
  ~GpuProbe() override { replaceProbeTime(nullptr); }

  // What each rank predicts. On rank 2's GPU no block of `limit` bytes can be allocated.
  std::vector<double> predictions(const std::vector<int>& nodes,
                                  std::size_t limit = static_cast<std::size_t>(-1)) {
    Job job{.ranks = 4, .nodes = nodes, .algorithms = {}};
    job.memory = moecclMemoryCuda;
    std::vector<double> all(4);
    runParts(job, [&](Board& board, int rank) {
      if (rank == 2) myGpu().limitMemory(limit);
      moecclComm_t comm = join(job, board, rank);
      all[static_cast<std::size_t>(rank)] = predicted(comm);
      EXPECT_LT(myGpu().secondsOfMessages(), kProbeSeconds);
      exchange(comm, rank);
      check(moecclCommDestroy(comm));
    });
    return all;
  }
  // The communicator is of use.
  static void exchange(moecclComm_t comm, int rank) {
    const auto device = myDevice();
    unsigned char* const data = device->allocate(8);
    moecclStream_t stream = device->newStream();
    const auto mine = static_cast<unsigned char>(10 * rank);
    const unsigned char sent[4] = {mine, static_cast<unsigned char>(mine + 1),
                                   static_cast<unsigned char>(mine + 2),
                                   static_cast<unsigned char>(mine + 3)};
    unsigned char got[4] = {};
    device->put(data, sent, 4);
    check(moecclAllToAll(data, data + 4, 1, moecclUint8, comm, stream), comm);
    device->synchronize(stream);
    device->get(got, data + 4, 4);
    for (int source = 0; source < 4; ++source) EXPECT_EQ(got[source], 10 * source + rank);
    device->deleteStream(stream);
    device->free(data);
  }
  // How often messages were sent so far.
  std::size_t sends() {
    return static_cast<std::size_t>(
        std::ranges::count(world.calls(), GpuCall::Kind::send, &GpuCall::kind));
  }
};

TEST_F(GpuProbe, LinksAreMeasuredOnceAndAlikeOnAllRanks) {
  // Each of the four ranks sends three quarters of a buffer, and receives as much.
  const double right = 6 * (GpuDouble::kLatency + GpuDouble::kSecondsPerByte * (1 << 20) / 4);
  std::size_t clusters = 0;
  for (const std::vector<int>& nodes : {std::vector{2, 2}, {3, 1}, {1, 1, 2}}) {
    setenv("MOECCL_PROBE", "0", 1);
    const std::vector<double> typical = predictions(nodes);
    EXPECT_EQ(files(), clusters);
    unsetenv("MOECCL_PROBE");
    const std::size_t before = sends();
    const std::vector<double> measured = predictions(nodes);
    EXPECT_EQ(measured, std::vector<double>(4, measured[0]));
    EXPECT_NE(measured, typical);
    EXPECT_NEAR(measured[0], right, 0.1 * right);
    EXPECT_EQ(files(), ++clusters);
    const std::size_t probing = sends() - before;
    EXPECT_EQ(predictions(nodes), measured);
    EXPECT_LT(sends() - before - probing, probing / 2);
    EXPECT_EQ(files(), clusters);
  }
}

TEST_F(GpuProbe, WithoutMemoryForItLinksAreTypical) {
  setenv("MOECCL_PROBE", "0", 1);
  const std::vector<double> typical = predictions({4});
  unsetenv("MOECCL_PROBE");
  EXPECT_EQ(predictions({4}, std::size_t{8} << 20), typical);
  EXPECT_EQ(files(), 0u);
}

}  // namespace
}  // namespace moeccl::test
