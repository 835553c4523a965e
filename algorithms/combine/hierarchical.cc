// Combine by way of the nodes, for small blocks, the mirror of dispatch/hierarchical.cc: the shards
// of an expert in one node add up, each one slice, for all nodes at once; what a node has for a
// rank elsewhere crosses as one message.
//
// Messages esp - 1 among the shards, G - 1 in the node, N - 1 between nodes; bytes between nodes as
// in dedup.
#include "algorithms/expert_exchange.h"

namespace moeccl::combine {

Plan hierarchical(const Topology& topology, const Parameters& parameters, int rank) {
  const int slices = slicesOf(topology, parameters.grid);
  PlanBuilder plan;
  plan.cut(slices);
  ExpertExchange(topology, parameters, rank, 1, slices, true)
      .relayedCombine(plan, ExpertExchange::Relay::byNodes, parameters);
  return plan.build();
}

}  // namespace moeccl::combine
