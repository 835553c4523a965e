// Dispatch without duplicates: where the shards of an expert share a node, a block from elsewhere
// crosses once, a slice to each of them, and they pass the slices on among themselves.
//
//   lane 0:  r -> (j, q): slice q of the blocks for position j       (whole blocks in the node)
//   lane 1:  (j, q) -> (j, other q): the slices from all ranks of a node, as soon as they are there
//
// Messages P - 1 and (N - 1) (esp - 1) in the node; bytes between nodes esp times fewer than
// flat's.
#include "algorithms/expert_exchange.h"

namespace moeccl::dispatch {

Plan dedup(const Topology& topology, const Parameters& parameters, int rank) {
  const int slices = slicesOf(topology, parameters.grid);
  PlanBuilder plan;
  plan.cut(slices);
  ExpertExchange(topology, parameters, rank, 1, slices, true).dispatch(plan, {0, slices});
  return plan.build();
}

}  // namespace moeccl::dispatch
