// Linear all-to-all: every rank sends each of its blocks straight to its owner.
//
//   rank r:  recv from r-1, r-2, ... (all at once)      send to r+1, r+2, ... (window at a time)
//
// Steps ceil((P-1) / window), messages P - 1 per rank, bytes (P - 1) x block per rank. Everybody
// starts with another partner, so that no rank is everybody's first target. A send waits for the
// one that is `window` sends older: a sliding window.
#include <algorithm>

#include "algorithms/registry.h"

namespace moeccl::alltoall {

Plan linear(const Topology& topology, const Parameters& parameters, int rank) {
  const int ranks = topology.ranks();
  const int window = parameters.window > 0 ? std::min(parameters.window, ranks) : ranks;
  PlanBuilder plan;
  plan.copy({}, input(rank), output(rank));
  for (int i = 1; i < ranks; ++i) {
    const int from = (rank - i + ranks) % ranks;
    plan.recv({.step = (i - 1) / window}, from, output(from));
  }
  const int firstSend = plan.opCount();
  for (int i = 1; i < ranks; ++i) {
    const int to = (rank + i) % ranks;
    const int older = firstSend + i - 1 - window;
    plan.send({.step = (i - 1) / window}, to, input(to), {{older, older >= firstSend ? 1 : 0}});
  }
  return plan.build();
}

}  // namespace moeccl::alltoall
