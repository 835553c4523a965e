// How topologies number nodes, and what they refuse.
#include "algorithms/topology.h"

#include <gtest/gtest.h>

#include <numeric>
#include <stdexcept>

#include "tests/plans/support.h"

namespace moeccl::testing {
namespace {

std::vector<int> list(std::span<const int> ranks) { return {ranks.begin(), ranks.end()}; }

TEST(Topology, NumbersNodesByFirstMention) {
  const Topology topology(std::vector<int>{7, -3, 7, 100, -3, 7});
  EXPECT_EQ(topology.ranks(), 6);
  EXPECT_EQ(topology.nodes(), 3);
  EXPECT_EQ(nameOf(topology), "0 1 0 2 1 0");
  EXPECT_EQ(list(topology.ranksOn(0)), (std::vector{0, 2, 5}));
  EXPECT_EQ(list(topology.ranksOn(1)), (std::vector{1, 4}));
  EXPECT_EQ(list(topology.ranksOn(2)), (std::vector{3}));
  EXPECT_EQ(topology.localOf(5), 2);
  EXPECT_EQ(topology.localOf(3), 0);
  EXPECT_EQ(list(topology.nodeByNode()), (std::vector{0, 2, 5, 1, 4, 3}));
}

TEST(Topology, EqualsWhatIsNamedOtherwise) {
  EXPECT_EQ(Topology(std::vector{4, 4, 9}), Topology(std::vector{0, 0, 1}));
  EXPECT_NE(Topology(std::vector{0, 0, 1}), Topology(std::vector{0, 1, 1}));
}

TEST(Topology, EvenAndUneven) {
  EXPECT_EQ(nameOf(Topology::even(2, 3)), "0 0 0 1 1 1");
  EXPECT_EQ(nameOf(Topology::even(3, 1)), "0 1 2");
  EXPECT_EQ(nameOf(Topology::uneven(std::vector{1, 3, 2})), "0 1 1 1 2 2");
  // A node of no ranks is none.
  EXPECT_EQ(nameOf(Topology::uneven(std::vector{2, 0, 1})), "0 0 1");
}

TEST(Topology, NeedsARank) {
  EXPECT_THROW(Topology(std::vector<int>{}), std::invalid_argument);
  EXPECT_THROW(Topology::even(0, 4), std::invalid_argument);
  EXPECT_THROW(Topology::even(4, 0), std::invalid_argument);
}

TEST(Topology, IsConsistent) {
  std::mt19937 random(5);
  for (int i = 0; i < 50; ++i) {
    const Topology topology = randomTopology(random, 300);
    std::vector<int> order;
    for (int node = 0; node < topology.nodes(); ++node) {
      ASSERT_GT(topology.nodeSize(node), 0);
      int local = 0;
      for (int rank : topology.ranksOn(node)) {
        EXPECT_EQ(topology.nodeOf(rank), node);
        EXPECT_EQ(topology.localOf(rank), local++);
        order.push_back(rank);
      }
      EXPECT_EQ(topology.nodeSize(node), local);
    }
    EXPECT_EQ(list(topology.nodeByNode()), order);
    EXPECT_EQ(static_cast<int>(order.size()), topology.ranks());
  }
}

}  // namespace
}  // namespace moeccl::testing
