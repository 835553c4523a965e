// Medians and what they vouch for.
#include <gtest/gtest.h>

#include <random>

#include "perf/fit/median.h"

namespace moeccl::perf {
namespace {

TEST(FitMedian, OfOne) {
  const Median median = medianOf({2});
  EXPECT_EQ(median.value, 2);
  EXPECT_EQ(median.uncertainty, 0);
  EXPECT_EQ(median.spread, 0);
}

TEST(FitMedian, FewValuesVouchForNothingButTheirRange) {
  EXPECT_DOUBLE_EQ(medianOf({8, 11, 10}).uncertainty, 0.2);
  EXPECT_DOUBLE_EQ(medianOf({10, 8, 9, 11, 16}).uncertainty, 0.6);
  EXPECT_DOUBLE_EQ(medianOf({8, 9, 11, 12}).value, 10);
  EXPECT_DOUBLE_EQ(medianOf({6, 8, 10, 12, 20}).spread, 0.4);
}

// The order statistics of tables of the sign test: of 8 values none can go, of 9 the ends.
TEST(FitMedian, OneOutlierAtEachEndCountsNoMoreAmongNine) {
  EXPECT_GT(medianOf({1, 10, 10, 10, 10, 10, 10, 100}).uncertainty, 8);
  EXPECT_EQ(medianOf({1, 10, 10, 10, 10, 10, 10, 10, 100}).uncertainty, 0);
  EXPECT_GT(medianOf({10, 10, 10, 10, 10, 10, 10, 100, 100}).uncertainty, 8);
}

TEST(FitMedian, HoldsItsPromise) {
  std::mt19937 random;
  std::exponential_distribution<double> values(1);
  const double truth = 1 + std::log(2);
  for (const int n : {6, 9, 15}) {
    int held = 0;
    for (int trial = 0; trial < 2000; ++trial) {
      std::vector<double> drawn;
      for (int i = 0; i < n; ++i) drawn.push_back(1 + values(random));
      const Median median = medianOf(drawn);
      held += std::abs(truth / median.value - 1) <= median.uncertainty;
    }
    EXPECT_GE(held, 1890) << n;  // 94.5 %
  }
}

}  // namespace
}  // namespace moeccl::perf
