// Binomial scatter: the binomial gather backwards. Whoever has blocks of others sends half of them
// on.
//
//   P = 6, root 0:    4, 5 ◀─ 0        2, 3 ◀─ 0        1 ◀─ 0   3 ◀─ 2   5 ◀─ 4
//
// Steps ceil(log2 P), messages 1 to each rank and ceil(log2 P) from the root; some blocks cross
// several times.
#include "algorithms/registry.h"
#include "algorithms/tree.h"

namespace moeccl::scatter {

Plan binomial(const Topology& topology, const Parameters& parameters, int rank) {
  const int ranks = topology.ranks(), root = parameters.root;
  const int own = (rank - root + ranks) % ranks;
  const BinomialTree tree(ranks, own);
  const auto rankOf = [&](int member) { return (member + root) % ranks; };
  PlanBuilder plan;
  plan.relay();
  // Where the blocks of the own subtree are, by member from the own one on.
  std::vector<Blocks> mine;
  OpRange ready{0, 0};
  if (rank == root) {
    plan.copy({}, input(rank), output(0));
    for (int i = 0; i < ranks; ++i) mine.push_back(input(rankOf(i)));
  } else {
    BlockList all;
    for (int i = 0; i < tree.members(); ++i) {
      mine.push_back(i == 0 ? output(0) : scratch(plan.scratch({root, rankOf(own + i)})));
      all.append(mine.back());
    }
    ready = {plan.recv({.step = tree.parent().round}, rankOf(tree.parent().member), all), 1};
  }
  for (const BinomialTree::Edge& child : tree.children()) {
    BlockList theirs;
    for (int i = 0; i < BinomialTree(ranks, child.member).members(); ++i)
      theirs.append(mine[static_cast<std::size_t>(child.member - own + i)]);
    plan.send({.step = child.round}, rankOf(child.member), theirs, {ready});
  }
  return plan.build();
}

}  // namespace moeccl::scatter
