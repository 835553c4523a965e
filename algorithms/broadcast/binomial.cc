// Binomial broadcast: in each round every rank that has the block passes it on to one that has not.
//
//   P = 6, root 0:    0 ─▶ 4        0 ─▶ 2   4 ─▶ ·      0 ─▶ 1   2 ─▶ 3   4 ─▶ 5
//
// Steps ceil(log2 P), messages P - 1 in all and ceil(log2 P) from the root, each of one block.
#include "algorithms/registry.h"
#include "algorithms/tree.h"

namespace moeccl::broadcast {

Plan binomial(const Topology& topology, const Parameters& parameters, int rank) {
  const int ranks = topology.ranks(), root = parameters.root;
  const BinomialTree tree(ranks, (rank - root + ranks) % ranks);
  const auto rankOf = [&](int member) { return (member + root) % ranks; };
  PlanBuilder plan;
  const int mine = tree.parent().member < 0 ? plan.copy({}, input(0), output(0))
                                            : plan.recv({.step = tree.parent().round},
                                                        rankOf(tree.parent().member), output(0));
  const bool isRoot = rank == root;
  for (const BinomialTree::Edge& child : tree.children())
    plan.send({.step = child.round}, rankOf(child.member), isRoot ? input(0) : output(0),
              {{mine, isRoot ? 0 : 1}});
  return plan.build();
}

}  // namespace moeccl::broadcast
