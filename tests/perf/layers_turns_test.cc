#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "perf/layers/turns.h"

namespace moeccl::perf::layers {
namespace {

// A turn's value tells whose it was and when.
TEST(LayerTurns, ValuesStayWithTheirContender) {
  Draws draws(1);
  std::vector<int> turns(4, 0);
  const std::vector<double> values = inTurns(4, 3, draws, [&](std::size_t contender) {
    return 100.0 * static_cast<double>(contender) + turns[contender]++;
  });
  EXPECT_EQ(byContender(values, 4),
            (std::vector<std::vector<double>>{
                {0, 1, 2}, {100, 101, 102}, {200, 201, 202}, {300, 301, 302}}));
}

TEST(LayerTurns, EveryoneIsInEachRepetitionInAnotherOrder) {
  Draws draws(1);
  std::vector<std::size_t> order;
  inTurns(8, 10, draws, [&](std::size_t contender) {
    order.push_back(contender);
    return 0.0;
  });
  ASSERT_EQ(order.size(), 80u);
  std::set<std::vector<std::size_t>> orders;
  for (auto first = order.begin(); first != order.end(); first += 8) {
    std::vector<std::size_t> one(first, first + 8);
    orders.insert(one);
    std::sort(one.begin(), one.end());
    EXPECT_EQ(one, (std::vector<std::size_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  }
  EXPECT_EQ(orders.size(), 10u);
}

}  // namespace
}  // namespace moeccl::perf::layers
