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

// Algorithms a, b, ... by their seconds at two sizes.
std::vector<TimedCandidate> race(const std::vector<std::pair<double, double>>& seconds) {
  std::vector<TimedCandidate> candidates;
  for (const auto& [before, last] : seconds) {
    std::string name(1, static_cast<char>('a' + candidates.size()));
    candidates.push_back({{nullptr, std::move(name)}, nullptr});
    candidates.back().before = before;
    candidates.back().last = last;
  }
  return candidates;
}

Names namesOf(const std::vector<TimedCandidate>& candidates) {
  Names names;
  for (const TimedCandidate& candidate : candidates) names.push_back(candidate.candidate.algorithm);
  return names;
}

// Who is measured between two sizes.
Names between(const std::vector<std::pair<double, double>>& seconds) {
  return namesOf(contested(race(seconds)));
}

TEST(FitCandidates, OvertakingIsLookedAtMoreClosely) {
  EXPECT_EQ(between({}), Names{});
  EXPECT_EQ(between({{0, 1}, {0, 2}}), Names{});  // there is no size before
  EXPECT_EQ(between({{1, 4}, {2, 5}}), Names{});  // a is the fastest at both
  EXPECT_EQ(between({{1, 6}, {2, 5}}), (Names{"a", "b"}));
  // c is close at one size, d at the other, and e at none.
  EXPECT_EQ(between({{1, 6}, {2, 4}, {1.2, 9}, {5, 5}, {2, 8}}), (Names{"a", "b", "c", "d"}));
}

TEST(FitCandidates, OvertakingIsLookedForInTheHalfThatHasIt) {
  // a is still the fastest halfway: it is overtaken above.
  Halves halves = halve(race({{1, 6}, {2, 4}, {1.2, 9}}), {2, 3, 4});
  EXPECT_EQ(namesOf(halves.lower), Names{});
  EXPECT_EQ(namesOf(halves.upper), (Names{"a", "b"}));
  EXPECT_EQ(halves.upper[0].before, 2);
  EXPECT_EQ(halves.upper[1].before, 3);
  EXPECT_EQ(halves.upper[1].last, 4);
  // Now it is not.
  halves = halve(halves.upper, {4, 3.5});
  EXPECT_EQ(namesOf(halves.lower), (Names{"a", "b"}));
  EXPECT_EQ(namesOf(halves.upper), Names{});
  EXPECT_EQ(halves.lower[0].before, 2);
  EXPECT_EQ(halves.lower[0].last, 4);
  // By the wrong one, less than a tenth would be lost at either size.
  halves = halve(race({{3.2, 4}, {3.3, 3.5}}), {3.6, 3.4});
  EXPECT_EQ(namesOf(halves.lower), Names{});
  // A third is the fastest halfway: it overtakes, and is overtaken.
  halves = halve(race({{1, 9}, {3, 4}, {1.2, 5}}), {3, 3, 2});
  EXPECT_EQ(namesOf(halves.lower), (Names{"a", "c"}));
  EXPECT_EQ(namesOf(halves.upper), (Names{"b", "c"}));
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
