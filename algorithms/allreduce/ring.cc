// Ring all-reduce: blocks are cut into P pieces; a ring reduce-scatter, then a ring all-gather.
//
// Steps and messages 2 (P - 1) per rank, bytes 2 (P - 1) / P x block per rank and on each uplink.
#include "algorithms/allgather/steps.h"
#include "algorithms/reducescatter/steps.h"

namespace moeccl::allreduce {

Plan ring(const Topology& topology, const Parameters&, int rank) {
  if (2 * (topology.ranks() - 1) > kMaxMessagesPerLane)
    throw NotOffered("ring sends " + std::to_string(2 * (topology.ranks() - 1)) +
                     " messages to one rank; at most " + std::to_string(kMaxMessagesPerLane) +
                     " can be told apart");
  PlanBuilder plan;
  plan.cut(topology.ranks());
  int step;
  const int summed = reducescatter::ringSteps(plan, topology, rank, output(rank), &step);
  allgather::ringSteps(plan, topology, rank, {output(rank), {summed}, step});
  return plan.build();
}

}  // namespace moeccl::allreduce
