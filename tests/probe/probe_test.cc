// Jobs without a profile that measure their links: all ranks choose by the same ones, which are
// kept for the next job.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "moeccl/model.h"
#include "moeccl/moeccl.h"
#include "tests/api/ranks.h"

namespace moeccl::test {
namespace {

namespace fs = std::filesystem;

class Probe : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = fs::temp_directory_path() / "moeccl-probe-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    setenv("XDG_CACHE_HOME", folder_.c_str(), 1);
    unsetenv("MOECCL_PROBE");
  }
  void TearDown() override {
    setenv("MOECCL_PROBE", "0", 1);
    unsetenv("XDG_CACHE_HOME");
    fs::remove_all(folder_);
  }

  std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    const fs::path kept = folder_ + "/moeccl";
    if (fs::exists(kept))
      for (const auto& each : fs::directory_iterator(kept)) found.push_back(each.path());
    return found;
  }

  std::string folder_;
};

double predicted(moecclComm_t comm) {
  moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
  cluster.comm = comm;
  moecclAlgorithmChoices_t choices = nullptr;
  moecclAlgorithmChoice_t first = MOECCL_ALGORITHM_CHOICE_INITIALIZER;
  check(moecclSelectAlgorithm(&cluster, "alltoall", 1 << 20, 1, &choices), comm);
  check(moecclAlgorithmChoicesGet(choices, 0, &first), comm);
  moecclAlgorithmChoicesDestroy(choices);
  return first.seconds;
}

// The same on all ranks, and not what `other` is.
void expectAlike(moecclComm_t comm, double other) {
  const double mine = predicted(comm);
  int ranks = 0;
  check(moecclCommCount(comm, &ranks), comm);
  std::vector<double> all(static_cast<std::size_t>(ranks));
  check(moecclAllGather(&mine, all.data(), 1, moecclFloat64, comm, nullptr), comm);
  for (double theirs : all) checkThat(theirs == mine, "ranks predict different times");
  checkThat(mine != other, "typical links");
}

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
  EXPECT_TRUE(files().empty());
  // Nor do those that are told not to.
  setenv("MOECCL_PROBE", "0", 1);
  runJob(job,
         [&](moecclComm_t comm, int) { checkThat(predicted(comm) == typical, "measured links"); });
  EXPECT_TRUE(files().empty());
  unsetenv("MOECCL_PROBE");

  runJob(job, [&](moecclComm_t comm, int) { expectAlike(comm, typical); });
  ASSERT_EQ(files().size(), 1u);
  const fs::path file = files()[0];
  const auto written = fs::last_write_time(file);
  runJob(job, [&](moecclComm_t comm, int) { expectAlike(comm, typical); });
  EXPECT_EQ(fs::last_write_time(file), written);
  // Another cluster.
  job.nodes = {1, 4};
  runJob(job, [&](moecclComm_t comm, int) { expectAlike(comm, typical); });
  EXPECT_EQ(files().size(), 2u);
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
