// Jobs without a profile that measure their links: all ranks choose by the same ones, which are
// kept for the next job.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "moeccl/moeccl.h"
#include "tests/probe/probing.h"

namespace moeccl::test {
namespace {

namespace fs = std::filesystem;

class Probe : public Probing {
 protected:
  // The same on all ranks, and not what `other` is.
  static void expectAlike(moecclComm_t comm, double other) {
    const double mine = predicted(comm);
    int ranks = 0;
    check(moecclCommCount(comm, &ranks), comm);
    std::vector<double> all(static_cast<std::size_t>(ranks));
    check(moecclAllGather(&mine, all.data(), 1, moecclFloat64, comm, nullptr), comm);
    for (double theirs : all) checkThat(theirs == mine, "ranks predict different times");
    checkThat(mine != other, "typical links");
  }
};

TEST_F(Probe, AllRanksChooseByTheSameLinksWhichAreKept) {
  Job job{.ranks = 5, .nodes = {3, 2}, .algorithms = {}};
  job.processes = true;
  // Ranks that are threads have typical links, and leave nothing.
  double typical = 0;
  Job threads = job;
  threads.processes = false;
  runJob(threads, [&](moecclComm_t comm, int rank) {
    if (rank == 0) typical = predicted(comm);
  });
  EXPECT_EQ(files(), 0u);
  // Nor do those that are told not to.
  setenv("MOECCL_PROBE", "0", 1);
  runJob(job,
         [&](moecclComm_t comm, int) { checkThat(predicted(comm) == typical, "measured links"); });
  EXPECT_EQ(files(), 0u);
  unsetenv("MOECCL_PROBE");

  const auto untilKept = [&](std::size_t count) {
    // On a busy machine links come out disturbed, again and again under a sanitizer.
    for (int i = 0; i < 100 && files() < count; ++i)
      runJob(job, [&](moecclComm_t comm, int) { expectAlike(comm, typical); });
    ASSERT_EQ(files(), count);
  };
  untilKept(1);
  if (HasFatalFailure()) return;
  const fs::path file = *fs::directory_iterator(kept());
  const auto written = fs::last_write_time(file);
  runJob(job, [&](moecclComm_t comm, int) { expectAlike(comm, typical); });
  EXPECT_EQ(fs::last_write_time(file), written);
  // Another cluster.
  job.nodes = {1, 4};
  untilKept(2);
  // Another way between nodes, perhaps.
  setenv("NCCL_OF_A_TEST", "1", 1);
  untilKept(3);
  unsetenv("NCCL_OF_A_TEST");
}

TEST_F(Probe, WithoutAPlaceToKeepThemLinksAreMeasuredAllTheSame) {
  setenv("XDG_CACHE_HOME", "/proc/nowhere", 1);
  Job job{.ranks = 2, .nodes = {1, 1}, .algorithms = {}};
  job.processes = true;
  runJob(job, [&](moecclComm_t comm, int) { expectAlike(comm, 0); });
}

TEST_F(Probe, AWrongValueIsNamed) {
  setenv("MOECCL_PROBE", "2", 1);
  moecclUniqueId id;
  ASSERT_EQ(moecclGetUniqueId(&id), moecclSuccess);
  moecclComm_t comm = nullptr;
  EXPECT_EQ(moecclCommInitRank(&comm, 1, id, 0), moecclInvalidArgument);
  EXPECT_NE(std::string(moecclGetLastError(nullptr)).find("MOECCL_PROBE"), std::string::npos);
}

}  // namespace
}  // namespace moeccl::test
