// Binomial gather: in each round half of the ranks that still have blocks pass on all that they
// have.
//
//   P = 6, root 0:    1 ─▶ 0   3 ─▶ 2   5 ─▶ 4        2, 3 ─▶ 0        4, 5 ─▶ 0
//
// Steps ceil(log2 P), messages 1 per rank and ceil(log2 P) to the root; a rank sends the blocks of
// its subtree, so that some blocks cross several times.
#include "algorithms/registry.h"
#include "algorithms/tree.h"

namespace moeccl::gather {

Plan binomial(const Topology& topology, const Parameters& parameters, int rank) {
  const int ranks = topology.ranks(), root = parameters.root;
  const BinomialTree tree(ranks, (rank - root + ranks) % ranks);
  const auto rankOf = [&](int member) { return (member + root) % ranks; };
  PlanBuilder plan;
  plan.relay();
  BlockList mine = input(0);
  std::vector<OpRange> arrived;
  if (rank == root) plan.copy({}, input(0), output(rank));
  // The smallest subtree comes first, and is next to the own block.
  for (std::size_t i = tree.children().size(); i-- > 0;) {
    const BinomialTree::Edge& child = tree.children()[i];
    BlockList theirs;
    for (int j = 0; j < BinomialTree(ranks, child.member).members(); ++j) {
      const int owner = rankOf(child.member + j);
      theirs.append(rank == root ? output(owner) : scratch(plan.scratch({owner, 0})));
    }
    const int step = tree.rounds() - 1 - child.round;
    arrived.push_back({plan.recv({.step = step}, rankOf(child.member), theirs), 1});
    mine.append(theirs);
  }
  if (rank != root)
    plan.send({.step = tree.rounds() - 1 - tree.parent().round}, rankOf(tree.parent().member), mine,
              arrived);
  return plan.build();
}

}  // namespace moeccl::gather
