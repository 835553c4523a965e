// Dispatch, without duplicates, of this rank's share of what its MP group has in common: see
// dispatch/dedup.cc.
#include "algorithms/expert_exchange.h"

namespace moeccl::splitdispatch {

Plan dedup(const Topology& topology, const Parameters& parameters, int rank) {
  const int slices = slicesOf(topology, parameters.grid);
  PlanBuilder plan;
  plan.cut(slices);
  ExpertExchange(topology, parameters, rank, parameters.grid.mp, slices, true)
      .dispatch(plan, {0, slices});
  return plan.build();
}

}  // namespace moeccl::splitdispatch
