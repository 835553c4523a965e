// Flat combine (Parm III-C): every shard sends its partial sums straight to their owner, who adds
// them up.
//
// Messages P - 1 per rank; a block crosses the network once per shard; scratch esp - 1 blocks for
// each.
#include "algorithms/expert_exchange.h"

namespace moeccl::combine {

Plan flat(const Topology& topology, const Parameters& parameters, int rank) {
  PlanBuilder plan;
  ExpertExchange(topology, parameters, rank, 1, 1, false).combine(plan, {});
  return plan.build();
}

}  // namespace moeccl::combine
