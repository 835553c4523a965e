// Spreads, quantiles and ratios of repetitions.
#include "perf/common/statistics.h"

#include <gtest/gtest.h>

namespace moeccl::perf {
namespace {

TEST(Statistics, Spread) {
  const Spread odd = spreadOf({5, 1, 9});
  EXPECT_EQ(odd.median, 5);
  EXPECT_EQ(odd.min, 1);
  EXPECT_EQ(odd.max, 9);
  EXPECT_EQ(spreadOf({4, 1, 2, 9}).median, 3);
  EXPECT_EQ(spreadOf({7}).median, 7);
}

TEST(Statistics, Quantiles) {
  const Quartiles quartiles = quartilesOf({40, 10, 30, 20, 50});
  EXPECT_EQ(quartiles.first, 20);
  EXPECT_EQ(quartiles.median, 30);
  EXPECT_EQ(quartiles.third, 40);
  EXPECT_EQ(quantileOf({8, 4}, 0.25), 5);
  EXPECT_EQ(quantileOf({8, 4}, 1), 8);
  EXPECT_EQ(quantileOf({7}, 0.9), 7);
}

TEST(Statistics, OverRanksAsNcclTestsAverage) {
  const std::vector<double> times = {1, 20, 3, 40, 8, 60};  // three ranks, two times each
  using Times = std::vector<double>;
  EXPECT_EQ(overRanks(times, 2, Average::kRank0), (Times{1, 20}));
  EXPECT_EQ(overRanks(times, 2, Average::kMean), (Times{4, 40}));
  EXPECT_EQ(overRanks(times, 2, Average::kMin), (Times{1, 20}));
  EXPECT_EQ(overRanks(times, 2, Average::kMax), (Times{8, 60}));
}

// The machine slowed down by ten between the repetitions; the ratio does not show it.
TEST(Statistics, RatioPairsRepetitions) {
  const Spread ratio = ratioOf({10, 100, 12}, {5, 50, 6});
  EXPECT_EQ(ratio.median, 2);
  EXPECT_EQ(ratio.min, 2);
  EXPECT_EQ(ratio.max, 2);
}

}  // namespace
}  // namespace moeccl::perf
