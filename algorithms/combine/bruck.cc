// Combine in Bruck's rounds, for the smallest blocks: see alltoall/bruck.cc. Partial sums go whole
// to their owner, who adds them up.
#include "algorithms/expert_exchange.h"

namespace moeccl::combine {

Plan bruck(const Topology& topology, const Parameters& parameters, int rank) {
  PlanBuilder plan;
  ExpertExchange(topology, parameters, rank, 1, 1, false)
      .relayedCombine(plan, ExpertExchange::Relay::inRounds, parameters);
  return plan.build();
}

}  // namespace moeccl::combine
