// Which algorithms moeccl-fit stops measuring, and when.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "perf/fit/candidates.h"

namespace moeccl::perf {
namespace {

// Runs sizes with the seconds of each algorithm; returns who is left. Those that were dropped stay
// so.
std::vector<std::string> left(const std::vector<std::string>& names,
                              const std::vector<std::vector<double>>& sizes) {
  std::vector<TimedCandidate> candidates;
  for (const std::string& name : names) candidates.push_back({{nullptr, name}, nullptr});
  for (const std::vector<double>& seconds : sizes) {
    const double before = fastestOf(candidates);
    for (TimedCandidate& candidate : candidates)
      candidate.last = seconds[static_cast<std::size_t>(
          std::find(names.begin(), names.end(), candidate.candidate.algorithm) - names.begin())];
    dropHopeless(candidates, before);
  }
  std::vector<std::string> remaining;
  for (const TimedCandidate& candidate : candidates)
    remaining.push_back(candidate.candidate.algorithm);
  return remaining;
}

using Names = std::vector<std::string>;

// By seconds of each algorithm at two sizes.
bool overtakes(const std::vector<std::pair<double, double>>& seconds) {
  std::vector<TimedCandidate> candidates;
  for (const auto& [before, last] : seconds)
    candidates.push_back({{nullptr, "any"}, nullptr, last, before});
  return overtaken(candidates);
}

TEST(FitCandidates, OvertakingIsLookedAtMoreClosely) {
  EXPECT_FALSE(overtakes({}));
  EXPECT_FALSE(overtakes({{0, 1}, {0, 2}}));  // there is no size before
  EXPECT_FALSE(overtakes({{1, 4}, {2, 5}}));
  EXPECT_TRUE(overtakes({{1, 6}, {2, 5}}));
  EXPECT_TRUE(overtakes({{1, 6}, {2, 5}, {3, 4}}));
}

TEST(FitCandidates, HopelessTwiceIsGivenUp) {
  EXPECT_EQ(left({"a", "b"}, {{1, 5}, {4, 20}}), (Names{"a", "b"}));
  EXPECT_EQ(left({"a", "b"}, {{1, 5}, {4, 20}, {16, 80}}), (Names{"a"}));
  EXPECT_EQ(left({"a", "b"}, {{5, 1}, {20, 4}, {80, 16}}), (Names{"b"}));
}

TEST(FitCandidates, NotOneAfterTheOther) {
  EXPECT_EQ(left({"a", "b"}, {{1, 5}, {4, 20}, {16, 60}, {64, 320}}), (Names{"a", "b"}));
}

TEST(FitCandidates, ManyStepsCountOnlyWhereBytesMatter) {
  // A ring among many ranks: bound by latency, until it moves the fewest bytes of all.
  EXPECT_EQ(left({"tree", "ring"}, {{1, 10}, {1.1, 10}, {1.3, 10}, {2, 10}, {8, 11}}),
            (Names{"tree", "ring"}));
}

TEST(FitCandidates, WhoCatchesUpStays) {
  EXPECT_EQ(left({"tree", "ring"}, {{1, 40}, {4, 60}, {16, 120}, {64, 400}}),
            (Names{"tree", "ring"}));
}

}  // namespace
}  // namespace moeccl::perf
