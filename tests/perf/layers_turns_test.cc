#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "perf/layers/turns.h"

namespace moeccl::perf::layers {
namespace {

TEST(LayerTurns, ValuesStayWithTheirCandidate) {
  Draws draws(1);
  for (int repetition = 0; repetition < 3; ++repetition)
    EXPECT_EQ(inTurns(4, draws, [](std::size_t candidate) { return 100.0 * candidate; }),
              (std::vector<double>{0, 100, 200, 300}));
}

TEST(LayerTurns, EveryoneIsInEachRepetitionInAnotherOrder) {
  Draws draws(1);
  std::set<std::vector<std::size_t>> orders;
  for (int repetition = 0; repetition < 10; ++repetition) {
    std::vector<std::size_t> order;
    inTurns(8, draws, [&](std::size_t candidate) {
      order.push_back(candidate);
      return 0.0;
    });
    orders.insert(order);
    std::sort(order.begin(), order.end());
    EXPECT_EQ(order, (std::vector<std::size_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  }
  EXPECT_EQ(orders.size(), 10u);
}

}  // namespace
}  // namespace moeccl::perf::layers
