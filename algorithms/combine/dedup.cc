// Combine without duplicates, the mirror of dispatch/dedup.cc: where the shards of an expert share
// a node, they add up among themselves, each one slice, and a block crosses once.
//
//   lane 0:  (j, q) -> (j, other q): its partial sums of the other's slice, for all ranks of a node
//   lane 1:  (j, q) -> r: slice q of the sums       (whole partial sums in the node)
//
// Messages P - 1 and (N - 1) (esp - 1) in the node; bytes between nodes esp times fewer than
// flat's.
#include "algorithms/expert_exchange.h"

namespace moeccl::combine {

Plan dedup(const Topology& topology, const Parameters& parameters, int rank) {
  const int slices = slicesOf(topology, parameters.grid);
  PlanBuilder plan;
  plan.cut(slices);
  ExpertExchange(topology, parameters, rank, 1, slices, true).combine(plan, {0, slices});
  return plan.build();
}

}  // namespace moeccl::combine
