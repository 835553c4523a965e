// Linear scatter: the root sends every block straight to its rank, a window of sends in flight.
//
// Steps ceil((P-1) / window), messages P - 1 from the root, bytes one block per rank.
#include <algorithm>

#include "algorithms/registry.h"

namespace moeccl::scatter {

Plan linear(const Topology& topology, const Parameters& parameters, int rank) {
  const int ranks = topology.ranks(), root = parameters.root;
  const int window = parameters.window > 0 ? std::min(parameters.window, ranks) : ranks;
  const auto stepOf = [&](int distance) { return (distance - 1) / window; };
  PlanBuilder plan;
  if (rank != root) {
    plan.recv({.step = stepOf((rank - root + ranks) % ranks)}, root, output(0));
    return plan.build();
  }
  plan.copy({}, input(rank), output(0));
  const int first = plan.opCount();
  for (int i = 1; i < ranks; ++i) {
    const int older = first + i - 1 - window, to = (root + i) % ranks;
    plan.send({.step = stepOf(i)}, to, input(to), {{older, older >= first ? 1 : 0}});
  }
  return plan.build();
}

}  // namespace moeccl::scatter
