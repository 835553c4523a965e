// Dispatch in Bruck's rounds, for the smallest blocks: see alltoall/bruck.cc. A block goes once per
// shard.
#include "algorithms/expert_exchange.h"

namespace moeccl::dispatch {

Plan bruck(const Topology& topology, const Parameters& parameters, int rank) {
  PlanBuilder plan;
  ExpertExchange(topology, parameters, rank, 1, 1, false)
      .relayedDispatch(plan, ExpertExchange::Relay::inRounds, parameters);
  return plan.build();
}

}  // namespace moeccl::dispatch
