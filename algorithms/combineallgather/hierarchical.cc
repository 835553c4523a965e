// Combine by way of the nodes, then MP-all-gather, for small blocks: see combine/hierarchical.cc.
#include "algorithms/combineallgather/steps.h"

namespace moeccl::combineallgather {

Plan hierarchical(const Topology& topology, const Parameters& parameters, int rank) {
  const Grid& grid = parameters.grid;
  const int slices = slicesOf(topology, grid);
  const ExpertExchange exchange(topology, parameters, rank, grid.mp, slices, true);
  PlanBuilder plan;
  plan.cut(slices);
  const std::vector<OpRange> summed =
      exchange.relayedCombine(plan, ExpertExchange::Relay::byNodes, parameters);
  gatherTokens(plan, exchange, grid, rank, {0, slices}, {.lane = 1}, summed);
  return plan.build();
}

}  // namespace moeccl::combineallgather
