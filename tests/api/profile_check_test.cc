// Calls that take other times than the profile says: a warning, once, where one is asked for.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tests/api/profiles.h"
#include "tests/temporary_folder.h"

namespace moeccl::test {
namespace {

// Before anybody asks.
[[maybe_unused]] const int kWarned = setenv("MOECCL_DEBUG", "WARN", 1);

// What is written to stderr when every rank makes 250 calls that should take `seconds` each.
std::string warningsWhere(double seconds, bool wait) {
  testing::internal::CaptureStderr();
  runJob({.ranks = 2, .nodes = {1, 1}, .algorithms = {}}, [&](moecclComm_t comm, int) {
    moecclProfile_t profile = nullptr;
    check(moecclProfileCreate(comm, &profile), comm);
    addLine(profile, {"alltoall", "linear", seconds, 0}, comm, nullptr);
    check(moecclProfileFit(profile));
    check(moecclCommSetProfile(comm, profile), comm);
    check(moecclProfileDestroy(profile));
    moecclStream_t stream = nullptr;
    if (!wait) check(moecclStreamCreate(comm, &stream), comm);
    const double sent[2] = {1, 2};
    double received[2];
    for (int i = 0; i < 250; ++i) {
      check(moecclAllToAll(sent, received, 1, moecclFloat64, comm, stream), comm);
      if (!wait) check(moecclStreamSynchronize(stream));
    }
    check(moecclStreamDestroy(stream));
  });
  return testing::internal::GetCapturedStderr();
}

int countIn(const std::string& text, const std::string& part) {
  int count = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(ProfileCheck, CallsThatAreMuchFasterAreToldOncePerRank) {
  const std::string text = warningsWhere(2.0, true);
  EXPECT_EQ(countIn(text, "by the profile"), 2) << text;
  EXPECT_EQ(countIn(text, "come late"), 0) << text;
}

TEST(ProfileCheck, CallsThatAreMuchSlowerAreToldOncePerRank) {
  EXPECT_EQ(countIn(warningsWhere(1e-8, true), "come late"), 2);
}

// The profile is one that moeccl-fit wrote by --force.
TEST(ProfileCheck, DoubtsAreToldOnce) {
  const TemporaryFolder folder;
  const std::string path = folder.path() / "profile.json";
  runJob({.ranks = 2, .nodes = {1, 1}, .algorithms = {}}, [&](moecclComm_t comm, int rank) {
    moecclProfile_t profile = nullptr;
    check(moecclProfileCreate(comm, &profile), comm);
    addLine(profile, {"alltoall", "linear", 1, 0}, comm, nullptr);
    check(moecclProfileFit(profile));
    if (rank == 0) check(moecclProfileSave(profile, path.c_str()));
    check(moecclProfileDestroy(profile));
  });
  std::ostringstream read;
  read << std::ifstream(path).rdbuf();
  std::string text = read.str();
  text.insert(text.find("\"curves\""), "\"doubts\": [\"node 7 was busy\", \"another\"], ");
  std::ofstream(path) << text;
  testing::internal::CaptureStderr();
  runJob({.ranks = 2, .nodes = {1, 1}, .algorithms = {}}, [&](moecclComm_t comm, int) {
    moecclProfile_t profile = nullptr;
    check(moecclProfileLoad(path.c_str(), &profile));
    check(moecclCommSetProfile(comm, profile), comm);
    check(moecclProfileDestroy(profile));
  });
  EXPECT_EQ(
      countIn(testing::internal::GetCapturedStderr(),
              "the profile may be wrong, as moeccl-fit wrote it with --force: node 7 was busy "
              "(1 of 2 doubts)"),
      1);
}

// A stream's calls wait for each other, and for the caller.
TEST(ProfileCheck, CallsOnStreamsAreNotLookedAt) { EXPECT_EQ(warningsWhere(2.0, false), ""); }

}  // namespace
}  // namespace moeccl::test
