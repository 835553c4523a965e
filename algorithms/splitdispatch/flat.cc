// Flat dispatch of this rank's share of what its MP group has in common: see dispatch/flat.cc.
#include "algorithms/expert_exchange.h"

namespace moeccl::splitdispatch {

Plan flat(const Topology& topology, const Parameters& parameters, int rank) {
  PlanBuilder plan;
  ExpertExchange(topology, parameters, rank, parameters.grid.mp, 1, false).dispatch(plan, {});
  return plan.build();
}

}  // namespace moeccl::splitdispatch
