// Calls that take other times than the profile says: a warning, once, where one is asked for.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/api/profiles.h"

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

// A stream's calls wait for each other, and for the caller.
TEST(ProfileCheck, CallsOnStreamsAreNotLookedAt) { EXPECT_EQ(warningsWhere(2.0, false), ""); }

}  // namespace
}  // namespace moeccl::test
