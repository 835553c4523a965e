// When threads that wait yield, and when they sleep.
#include "src/comm/waiting.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

namespace moeccl {
namespace {

using namespace std::chrono_literals;

int looksOf(const Waiting& waiting) {
  int looks = 0;
  while (!waiting.sleeps(looks)) ++looks;
  return looks;
}

void takeLongTurns(Waiting& waiting) {
  for (int i = 0; i < Waiting::kLongTurns; ++i) waiting.took(3ms);
}

// Sleeps until it yields again.
int sleepsOf(Waiting& waiting) {
  int sleeps = 0;
  for (; looksOf(waiting) == Waiting::kFewLooks; ++sleeps) waiting.slept();
  return sleeps;
}

TEST(Waiting, YieldsAmongRanksOfOneGroup) {
  Waiting waiting(4, false, [] { return 6; });
  for (int i = 0; i < 1000; ++i) waiting.took(i % Waiting::kLongTurns == 0 ? 3ms : 100us);
  EXPECT_EQ(looksOf(waiting), Waiting::kLooks);
}

TEST(Waiting, YieldsAmongRanksThatCompute) {
  Waiting waiting(4, false, [] { return 4; });
  takeLongTurns(waiting);
  EXPECT_EQ(looksOf(waiting), Waiting::kLooks);
}

TEST(Waiting, SleepsAmongRanksOfSeveralGroups) {
  EXPECT_EQ(looksOf(Waiting(4, true)), Waiting::kFewLooks);
}

// And tries again after a while, the less often the more often it was in vain.
TEST(Waiting, SleepsBesideWhoKeepsTheCore) {
  Waiting waiting(4, false, [] { return 5; });
  for (int expected = Waiting::kShortest; expected <= 2 * Waiting::kLongest; expected *= 2) {
    takeLongTurns(waiting);
    EXPECT_EQ(sleepsOf(waiting), std::min(expected, Waiting::kLongest));
  }
  waiting.took(100us);
  takeLongTurns(waiting);
  EXPECT_EQ(sleepsOf(waiting), Waiting::kShortest);
}

TEST(Waiting, CountsWhoRuns) { EXPECT_GE(runningOnHost(), 1); }

}  // namespace
}  // namespace moeccl
