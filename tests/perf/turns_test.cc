// Competitors take turns, and disturbed ones are repeated.
#include "perf/common/turns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <vector>

namespace moeccl::perf {
namespace {

// One rank.
std::vector<double> mineAlone(const std::vector<double>& mine, Average) { return mine; }

// Says of the turns one after the other whether they were disturbed; of those behind that none was.
struct Watched {
  static inline std::vector<bool> script;
  static inline std::size_t next = 0;
  bool disturbed() const {
    const std::size_t at = next++;
    return at < script.size() && script[at];
  }
};

TEST(Turns, ValuesStayWithTheirCompetitor) {
  Draws draws(1);
  const std::vector<Turns> turns =
      takeTurns<Watched>(4, 3, draws, Average::kMax, mineAlone, [](std::size_t competitor) {
        const double value = 100.0 * static_cast<double>(competitor);
        return std::vector{value, value + 1};
      });
  ASSERT_EQ(turns.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    const double value = 100.0 * static_cast<double>(i);
    EXPECT_EQ(turns[i].values, (std::vector<std::vector<double>>(3, {value, value + 1})));
  }
}

TEST(Turns, EveryoneIsInEachRoundInAnotherOrder) {
  Draws draws(1);
  std::vector<std::size_t> order;
  takeTurns<Watched>(8, 10, draws, Average::kMax, mineAlone, [&](std::size_t competitor) {
    order.push_back(competitor);
    return std::vector{0.0};
  });
  ASSERT_EQ(order.size(), 80u);
  std::set<std::vector<std::size_t>> orders;
  for (auto at = order.begin(); at != order.end(); at += 8) {
    std::vector<std::size_t> round(at, at + 8);
    orders.insert(round);
    std::sort(round.begin(), round.end());
    EXPECT_EQ(round, (std::vector<std::size_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  }
  EXPECT_EQ(orders.size(), 10u);
}

TEST(Turns, DisturbedOnesAreRepeatedAndCountInTheEnd) {
  for (const auto& [script, repeated, disturbed] :
       {std::tuple{std::vector{true, false, false}, 1, 0},
        {std::vector(4, true), 2, 2},
        {std::vector{true, true, true}, 2, 1}}) {
    Draws draws(1);
    Watched::script = script;
    Watched::next = 0;
    double turn = 0;
    const std::vector<Turns> turns = takeTurns<Watched>(
        1, 2, draws, Average::kMax, mineAlone, [&](std::size_t) { return std::vector{++turn}; });
    EXPECT_EQ(turns[0].values.size(), 2u);
    EXPECT_EQ(turns[0].repeated, repeated);
    EXPECT_EQ(turns[0].disturbed, disturbed);
  }
  Watched::script.clear();
}

// What one rank says of a turn is so for all.
TEST(Turns, ValuesAreThoseOverAllRanks) {
  Draws draws(1);
  const std::vector<Turns> turns = takeTurns<Watched>(
      1, 1, draws, Average::kMean,
      [](const std::vector<double>& mine, Average average) {
        std::vector<double> both = mine;
        for (const double value : mine) both.push_back(value + 2);
        return overRanks(both, mine.size(), average);
      },
      [](std::size_t) {
        return std::vector{1.0, 5.0};
      });
  EXPECT_EQ(turns[0].values[0], (std::vector<double>{2, 6}));
}

}  // namespace
}  // namespace moeccl::perf
