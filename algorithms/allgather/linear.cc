// Linear all-gather: every rank sends its block straight to every other rank.
//
// Steps ceil((P-1) / window), messages P - 1 per rank, bytes (P - 1) x block per rank.
#include <algorithm>

#include "algorithms/allgather/steps.h"

namespace moeccl::allgather {

void linearSteps(PlanBuilder& plan, const Topology& topology, const Parameters& parameters,
                 int rank, const Own& own) {
  const int ranks = topology.ranks();
  const int window = parameters.window > 0 ? std::min(parameters.window, ranks) : ranks;
  plan.reserve(2 * static_cast<size_t>(ranks));
  for (int i = 1; i < ranks; ++i) {
    const int from = (rank - i + ranks) % ranks;
    plan.recv({.step = own.step + (i - 1) / window}, from, output(from));
  }
  const int firstSend = plan.opCount();
  for (int i = 1; i < ranks; ++i) {
    const int older = firstSend + i - 1 - window;
    plan.send({.step = own.step + (i - 1) / window}, (rank + i) % ranks, own.block,
              {own.ready, {older, older >= firstSend ? 1 : 0}});
  }
}

Plan linear(const Topology& topology, const Parameters& parameters, int rank) {
  PlanBuilder plan;
  plan.copy({}, input(0), output(rank));
  linearSteps(plan, topology, parameters, rank, {input(0)});
  return plan.build();
}

}  // namespace moeccl::allgather
