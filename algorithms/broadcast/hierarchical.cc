// Hierarchical broadcast: binomial over the nodes, then binomial inside each node.
//
//   node 0: root ──▶ node 1: first rank ──▶ ...
//             ├─▶ other ranks      └─▶ other ranks
//
// Steps ceil(log2 nodes) + ceil(log2 G); each uplink carries what the tree over the nodes sends:
// one block into each node.
#include "algorithms/registry.h"
#include "algorithms/tree.h"

namespace moeccl::broadcast {

Plan hierarchical(const Topology& topology, const Parameters& parameters, int rank) {
  const int root = parameters.root, node = topology.nodeOf(rank);
  const NodeTrees trees(topology, rank, root);
  const int local = trees.between.rounds();  // the first step inside nodes
  PlanBuilder plan;
  int mine;
  if (rank == root)
    mine = plan.copy({}, input(0), output(0));
  else if (trees.leads)
    mine = plan.recv({.step = trees.between.parent().round},
                     trees.rankBetween(trees.between.parent().member), output(0));
  else
    mine = plan.recv({.step = local + trees.within.parent().round},
                     trees.rankWithin(node, trees.within.parent().member), output(0));
  const OpRange ready{mine, rank == root ? 0 : 1};
  const BlockList block = rank == root ? input(0) : output(0);
  if (trees.leads)
    for (const BinomialTree::Edge& child : trees.between.children())
      plan.send({.step = child.round}, trees.rankBetween(child.member), block, {ready});
  for (const BinomialTree::Edge& child : trees.within.children())
    plan.send({.step = local + child.round}, trees.rankWithin(node, child.member), block, {ready});
  return plan.build();
}

}  // namespace moeccl::broadcast
