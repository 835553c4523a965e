// Dispatch by way of the nodes, for small blocks: what a node has for a rank elsewhere crosses as
// one message, as in alltoall/hierarchical.cc. Where the shards of an expert share a node, a block
// crosses once, in slices, which the shards then pass on, as in dedup.cc.
//
// Messages G - 1 in the node, N - 1 between nodes, esp - 1 among the shards; bytes between nodes as
// in dedup.
#include "algorithms/expert_exchange.h"

namespace moeccl::dispatch {

Plan hierarchical(const Topology& topology, const Parameters& parameters, int rank) {
  const int slices = slicesOf(topology, parameters.grid);
  PlanBuilder plan;
  plan.cut(slices);
  ExpertExchange(topology, parameters, rank, 1, slices, true)
      .relayedDispatch(plan, ExpertExchange::Relay::byNodes, parameters);
  return plan.build();
}

}  // namespace moeccl::dispatch
