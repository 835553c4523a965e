// Binomial reduce: the binomial broadcast backwards, with sums. A rank adds what its children send
// to its own block and passes the sum on.
//
//   P = 6, root 0:    1 ─▶ 0   3 ─▶ 2   5 ─▶ 4        2 ─▶ 0        4 ─▶ 0
//
// Steps ceil(log2 P), messages P - 1 in all, each of one block; a rank sums once.
#include "algorithms/reduce/steps.h"
#include "algorithms/tree.h"

namespace moeccl::reduce {

Plan binomial(const Topology& topology, const Parameters& parameters, int rank) {
  const int ranks = topology.ranks(), root = parameters.root;
  const BinomialTree tree(ranks, (rank - root + ranks) % ranks);
  const auto rankOf = [&](int member) { return (member + root) % ranks; };
  PlanBuilder plan;
  std::vector<Source> sources;
  for (const BinomialTree::Edge& child : tree.children())
    sources.push_back({rankOf(child.member), 2 * (tree.rounds() - 1 - child.round)});
  const BinomialTree::Edge parent = tree.parent();
  addAndPass(plan, rank, sources,
             {rank == root ? -1 : rankOf(parent.member), 2 * (tree.rounds() - 1 - parent.round)});
  return plan.build();
}

}  // namespace moeccl::reduce
