// Dispatch by way of the nodes, of this rank's share of what its MP group has in common: see
// dispatch/hierarchical.cc.
#include "algorithms/expert_exchange.h"

namespace moeccl::splitdispatch {

Plan hierarchical(const Topology& topology, const Parameters& parameters, int rank) {
  const int slices = slicesOf(topology, parameters.grid);
  PlanBuilder plan;
  plan.cut(slices);
  ExpertExchange(topology, parameters, rank, parameters.grid.mp, slices, true)
      .relayedDispatch(plan, ExpertExchange::Relay::byNodes, parameters);
  return plan.build();
}

}  // namespace moeccl::splitdispatch
