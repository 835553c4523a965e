// Dispatch in Bruck's rounds, of this rank's share of what its MP group has in common: see
// dispatch/bruck.cc.
#include "algorithms/expert_exchange.h"

namespace moeccl::splitdispatch {

Plan bruck(const Topology& topology, const Parameters& parameters, int rank) {
  PlanBuilder plan;
  ExpertExchange(topology, parameters, rank, parameters.grid.mp, 1, false)
      .relayedDispatch(plan, ExpertExchange::Relay::inRounds, parameters);
  return plan.build();
}

}  // namespace moeccl::splitdispatch
