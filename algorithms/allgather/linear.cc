// Linear all-gather: every rank sends its block straight to every other rank.
//
// Steps ceil((P-1) / window), messages P - 1 per rank, bytes (P - 1) x block per rank.
#include "algorithms/registry.h"

namespace moeccl::allgather {

Plan linear(const Topology& topology, const Parameters& parameters, int rank) {
  const int ranks = topology.ranks();
  const int window = parameters.window > 0 ? parameters.window : ranks;
  PlanBuilder plan;
  plan.copy({}, input(0), output(rank));
  for (int i = 1; i < ranks; ++i) {
    const int from = (rank - i + ranks) % ranks;
    plan.recv({.step = (i - 1) / window}, from, output(from));
  }
  const int firstSend = plan.opCount();
  for (int i = 1; i < ranks; ++i) {
    const int older = firstSend + i - 1 - window;
    plan.send({.step = (i - 1) / window}, (rank + i) % ranks, input(0),
              {{older, older >= firstSend ? 1 : 0}});
  }
  return plan.build();
}

}  // namespace moeccl::allgather
