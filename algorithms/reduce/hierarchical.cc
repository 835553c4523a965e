// Hierarchical reduce: binomial inside each node, then binomial over the nodes.
//
//   node 1: other ranks ─▶ first rank ──▶ node 0: root
//                                            ▲
//   node 0: other ranks ─────────────────────┘
//
// Steps ceil(log2 G) + ceil(log2 nodes) of messages; one block leaves each node.
#include "algorithms/reduce/steps.h"
#include "algorithms/tree.h"

namespace moeccl::reduce {

Plan hierarchical(const Topology& topology, const Parameters& parameters, int rank) {
  const int root = parameters.root, node = topology.nodeOf(rank);
  const NodeTrees trees(topology, rank, root);
  int local = 0;  // rounds inside the largest node
  for (int i = 0; i < topology.nodes(); ++i)
    local = std::max(local, BinomialTree(topology.nodeSize(i), 0).rounds());
  const auto stepWithin = [&](const BinomialTree::Edge& edge) {
    return 2 * (trees.within.rounds() - 1 - edge.round);
  };
  const auto stepBetween = [&](const BinomialTree::Edge& edge) {
    return 2 * (local + trees.between.rounds() - 1 - edge.round);
  };
  PlanBuilder plan;
  std::vector<Source> sources;
  for (const BinomialTree::Edge& child : trees.within.children())
    sources.push_back({trees.rankWithin(node, child.member), stepWithin(child)});
  if (trees.leads)
    for (const BinomialTree::Edge& child : trees.between.children())
      sources.push_back({trees.rankBetween(child.member), stepBetween(child)});
  const BinomialTree::Edge up = trees.leads ? trees.between.parent() : trees.within.parent();
  if (rank == root)
    addAndPass(plan, rank, sources, {-1, 0});
  else if (trees.leads)
    addAndPass(plan, rank, sources, {trees.rankBetween(up.member), stepBetween(up)});
  else
    addAndPass(plan, rank, sources, {trees.rankWithin(node, up.member), stepWithin(up)});
  return plan.build();
}

}  // namespace moeccl::reduce
