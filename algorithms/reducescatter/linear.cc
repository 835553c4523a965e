// Linear reduce-scatter: every rank sends each of its blocks straight to its owner, who adds them
// all up at once, in rank order: the sum is rounded once.
//
// Steps ceil((P-1) / window) and the sum, messages P - 1 per rank, bytes (P - 1) x block per rank;
// scratch P - 1 blocks.
#include <algorithm>

#include "algorithms/reducescatter/steps.h"

namespace moeccl::reducescatter {

int linearSteps(PlanBuilder& plan, const Topology& topology, const Parameters& parameters, int rank,
                Blocks result, int* step) {
  const int ranks = topology.ranks();
  const int window = parameters.window > 0 ? std::min(parameters.window, ranks) : ranks;
  plan.reserve(2 * static_cast<size_t>(ranks));
  BlockList terms;
  std::vector<Blocks> from;
  for (int source = 0; source < ranks; ++source) {
    from.push_back(source == rank ? input(rank) : scratch(plan.scratch({source, rank})));
    terms.append(from.back());
  }
  const int firstRecv = plan.opCount();
  for (int i = 1; i < ranks; ++i) {
    const int source = (rank - i + ranks) % ranks;
    plan.recv({.step = (i - 1) / window}, source, from[source]);
  }
  const OpRange arrived = plan.since(firstRecv);
  const int firstSend = plan.opCount();
  for (int i = 1; i < ranks; ++i) {
    const int to = (rank + i) % ranks;
    const int older = firstSend + i - 1 - window;
    plan.send({.step = (i - 1) / window}, to, input(to), {{older, older >= firstSend ? 1 : 0}});
  }
  *step = (ranks - 2 + window) / window + 1;
  return plan.reduce({.step = *step - 1}, terms, result, {arrived});
}

Plan linear(const Topology& topology, const Parameters& parameters, int rank) {
  PlanBuilder plan;
  int step;
  linearSteps(plan, topology, parameters, rank, output(0), &step);
  return plan.build();
}

}  // namespace moeccl::reducescatter
