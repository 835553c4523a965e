// What token routing is predicted to send and to take where tokens choose evenly.
#include "src/model/route_model.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace moeccl {
namespace {

RouteEstimate estimateOf(const std::vector<RouteEstimate>& all, std::string_view algorithm) {
  return *std::ranges::find(all, algorithm, &RouteEstimate::algorithm);
}

// 64 experts, of which a token has 8.
std::vector<RouteEstimate> estimatesOn(int nodes, int ranks, int esp = 1, int choices = 8) {
  const Topology topology = Topology::even(nodes, ranks);
  return routeEstimates({}, topology, {1, nodes * ranks / esp, esp, true},
                        {64, choices, 512, 4096});
}

TEST(RouteModel, CountsTheRowsThatLeaveANode) {
  struct Rows {
    int nodes;
    double node, rank, flat;
  };
  for (const Rows& expected : {Rows{2, 1.0, 2.7, 4.0}, {4, 2.74, 5.0, 6.0}}) {
    const std::vector<RouteEstimate> all = estimatesOn(expected.nodes, 4);
    ASSERT_EQ(all.size(), 3u);
    const auto between = [&](std::string_view name, double RouteEstimate::*rows) {
      return estimateOf(all, name).*rows / 512;
    };
    EXPECT_NEAR(between("node", &RouteEstimate::dispatchedBetween), expected.node, 0.05);
    EXPECT_NEAR(between("rank", &RouteEstimate::dispatchedBetween), expected.rank, 0.1);
    EXPECT_NEAR(between("flat", &RouteEstimate::dispatchedBetween), expected.flat, 0.01);
    EXPECT_NEAR(between("node", &RouteEstimate::combinedBetween), expected.node, 0.05);
    // Sums are made where the token is.
    EXPECT_NEAR(between("rank", &RouteEstimate::combinedBetween), expected.flat, 0.01);
    EXPECT_EQ(all[0].algorithm, "node");
  }
}

// The rows of a shard on another node count too.
TEST(RouteModel, CountsShards) {
  EXPECT_NEAR(estimateOf(estimatesOn(2, 4, 8, 1), "flat").dispatchedBetween, 4 * 512, 1);
  EXPECT_NEAR(estimateOf(estimatesOn(2, 4, 8, 1), "node").dispatchedBetween, 512, 1);
}

TEST(RouteModel, OneWayIsAnAllToAllV) {
  int ways = 0;
  for (const RouteEstimate& it : estimatesOn(2, 4)) {
    ways += it.isAllToAllv;
    EXPECT_GT(it.dispatch, it.dispatchLatency);
    EXPECT_GT(it.combine, it.combineLatency);
    EXPECT_GT(it.dispatchLatency, 0);
  }
  EXPECT_EQ(ways, 1);
  EXPECT_TRUE(estimateOf(estimatesOn(2, 4), "flat").isAllToAllv);
}

}  // namespace
}  // namespace moeccl
