// Flat dispatch (Parm III-C): every rank sends its tokens for an expert straight to each of its
// shards.
//
// Messages P - 1 per rank; a block crosses the network once per shard.
#include "algorithms/expert_exchange.h"

namespace moeccl::dispatch {

Plan flat(const Topology& topology, const Parameters& parameters, int rank) {
  PlanBuilder plan;
  ExpertExchange(topology, parameters, rank, 1, 1, false).dispatch(plan, {});
  return plan.build();
}

}  // namespace moeccl::dispatch
