// MOECCL_TRACE: a file per rank that says what every op of every call did.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "tests/api/ranks.h"
#include "tests/temporary_folder.h"

namespace moeccl::test {
namespace {

TEST(Trace, HasEveryOpOfEveryCall) {
  const TemporaryFolder own;
  const std::filesystem::path& folder = own.path();
  setenv("MOECCL_TRACE", (folder / "t").c_str(), 1);
  constexpr int kRanks = 4, kCalls = 3;
  Job job{.ranks = kRanks, .nodes = {2, 2}, .algorithms = "alltoall=pairwise"};
  runJob(job, [](moecclComm_t comm, int) {
    float in[5 * kRanks] = {}, out[5 * kRanks];
    for (int call = 0; call < kCalls; ++call)
      check(moecclAllToAll(in, out, 5, moecclFloat32, comm, nullptr), comm);
  });
  runJob(job, [](moecclComm_t, int) {});  // leaves the first job's alone
  unsetenv("MOECCL_TRACE");
  std::multiset<std::string> begun, ended;  // arrows
  for (int rank = 0; rank < kRanks; ++rank) {
    std::ifstream file(folder / ("t." + std::to_string(rank) + ".json"));
    ASSERT_TRUE(file.good());
    int sends = 0, receives = 0, copies = 0, calls = 0;
    std::set<std::string> tracks;
    for (const nlohmann::json& event : nlohmann::json::parse(file)) {
      EXPECT_EQ(event["pid"], rank);
      if (event["name"] == "thread_name") tracks.insert(event["args"]["name"]);
      if (event["ph"] == "s") begun.insert(event["id"]);
      if (event["ph"] == "f") ended.insert(event["id"]);
      if (event["ph"] != "X") continue;
      if (event["cat"] == "call") {
        EXPECT_EQ(event["name"], "alltoall (pairwise)");
        ++calls;
        continue;
      }
      EXPECT_EQ(event["cat"], "alltoall (pairwise)");
      EXPECT_EQ(event["args"]["bytes"], 20);
      EXPECT_GE(event["dur"], 0.0);
      const std::string name = event["name"];
      sends += name.starts_with("send to ");
      receives += name.starts_with("receive from ");
      copies += name == "copy";
    }
    EXPECT_EQ(sends, (kRanks - 1) * kCalls);
    EXPECT_EQ(receives, (kRanks - 1) * kCalls);
    EXPECT_EQ(copies, kCalls);
    EXPECT_EQ(calls, kCalls);
    EXPECT_TRUE(tracks.contains("calls"));
    EXPECT_TRUE(std::ranges::any_of(
        tracks, [](const std::string& name) { return name.find("send, receive") != name.npos; }));
    EXPECT_TRUE(std::filesystem::exists(folder / ("t." + std::to_string(rank) + ".2.json")));
  }
  // Each message is one arrow, from the file of one rank to that of another.
  EXPECT_EQ(begun.size(), std::size_t{kRanks * (kRanks - 1) * kCalls});
  EXPECT_EQ(begun, ended);
  EXPECT_EQ(std::set<std::string>(begun.begin(), begun.end()).size(), begun.size());
}

// A place that cannot be written to costs a warning, not the job.
TEST(Trace, OfNowhereIsNoError) {
  setenv("MOECCL_TRACE", "/nowhere/at/all/t", 1);
  runJob({.ranks = 2, .nodes = {}, .algorithms = {}}, [](moecclComm_t comm, int) {
    int in[2] = {}, out[2];
    check(moecclAllToAll(in, out, 1, moecclInt32, comm, nullptr), comm);
  });
  unsetenv("MOECCL_TRACE");
}

}  // namespace
}  // namespace moeccl::test
