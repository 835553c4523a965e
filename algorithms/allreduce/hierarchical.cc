// Hierarchical all-reduce: blocks are cut into P pieces; a hierarchical reduce-scatter (sums in the
// node before they cross), then a hierarchical all-gather (results are passed on in the node).
//
// With N nodes of G ranks: messages 2 (N - 1) between nodes and 3 (G - 1) in the node per rank;
// bytes on each uplink 2 (P - G) / P x block each way.
#include "algorithms/allgather/steps.h"
#include "algorithms/reducescatter/steps.h"

namespace moeccl::allreduce {

Plan hierarchical(const Topology& topology, const Parameters&, int rank) {
  PlanBuilder plan;
  plan.cut(topology.ranks());
  int step;
  const int summed = reducescatter::hierarchicalSteps(plan, topology, rank, output(rank), &step);
  allgather::hierarchicalSteps(plan, topology, rank, {output(rank), {summed}, step});
  return plan.build();
}

}  // namespace moeccl::allreduce
