// Combine in Bruck's rounds, then MP-all-gather, for the smallest blocks: see combine/bruck.cc.
#include "algorithms/combineallgather/steps.h"

namespace moeccl::combineallgather {

Plan bruck(const Topology& topology, const Parameters& parameters, int rank) {
  const Grid& grid = parameters.grid;
  const int slices = 1;
  const ExpertExchange exchange(topology, parameters, rank, grid.mp, slices, false);
  PlanBuilder plan;
  plan.cut(slices);
  const std::vector<OpRange> summed =
      exchange.relayedCombine(plan, ExpertExchange::Relay::inRounds, parameters);
  gatherTokens(plan, exchange, grid, rank, {0, slices}, {.lane = 1}, summed);
  return plan.build();
}

}  // namespace moeccl::combineallgather
