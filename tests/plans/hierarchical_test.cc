// What hierarchical promises about its messages.
#include <gtest/gtest.h>

#include <map>

#include "tests/plans/support.h"

namespace moeccl::testing {
namespace {

struct Counts {
  int inNode = 0, between = 0;
};

Counts sendsOf(const Plan& plan, const Topology& topology, int rank) {
  Counts counts;
  for (const Op& op : plan.ops)
    if (op.kind == OpKind::send)
      ++(topology.nodeOf(op.peer) == topology.nodeOf(rank) ? counts.inNode : counts.between);
  return counts;
}

std::vector<Plan> plansOn(const Topology& topology) {
  return *plansOf(*findAlgorithm(Collective::allToAll, "hierarchical"), topology);
}

TEST(Hierarchical, OneMessagePerOtherNodeAndPerNeighbour) {
  for (const auto& [nodes, ranksPerNode] :
       {std::pair{4, 4}, {2, 4}, {8, 1}, {1, 8}, {5, 3}, {16, 8}}) {
    const Topology topology = Topology::even(nodes, ranksPerNode);
    const std::vector<Plan> plans = plansOn(topology);
    for (int rank = 0; rank < topology.ranks(); ++rank) {
      const Counts counts = sendsOf(plans[rank], topology, rank);
      EXPECT_EQ(counts.inNode, ranksPerNode - 1) << nodes << " x " << ranksPerNode;
      EXPECT_EQ(counts.between, nodes - 1) << nodes << " x " << ranksPerNode;
    }
  }
}

// Between nodes A and B: |B| messages of |A| blocks; every block crosses once.
TEST(Hierarchical, MessagesBetweenUnevenNodes) {
  std::mt19937 random(77);
  for (int i = 0; i < 40; ++i) {
    const Topology topology = randomTopology(random, 100);
    const std::vector<Plan> plans = plansOn(topology);
    std::map<std::pair<int, int>, int> messages;
    for (int rank = 0; rank < topology.ranks(); ++rank) {
      const int node = topology.nodeOf(rank);
      for (const Op& op : plans[rank].ops) {
        if (op.kind != OpKind::send || topology.nodeOf(op.peer) == node) continue;
        ++messages[{node, topology.nodeOf(op.peer)}];
        EXPECT_EQ(blockCount(plans[rank].src(op)), topology.nodeSize(node));
      }
      EXPECT_LE(sendsOf(plans[rank], topology, rank).inNode, topology.nodeSize(node) - 1);
    }
    for (int a = 0; a < topology.nodes(); ++a)
      for (int b = 0; b < topology.nodes(); ++b)
        if (a != b) {
          const int crossing = messages[{a, b}];
          EXPECT_EQ(crossing, topology.nodeSize(b)) << nameOf(topology);
        }
  }
}

}  // namespace
}  // namespace moeccl::testing
