// Ring all-gather: blocks travel around a ring; in step i a rank passes on what it received in step
// i - 1. The ring walks node by node, so that each uplink carries each block once in and once out.
//
//   position p:  step 0: own block -> p+1    step i: block of p-i -> p+1, block of p-i-1 <- p-1
//
// Steps P - 1, messages P - 1 per rank, bytes (P - 1) x block per rank and, unlike linear, as many
// on each uplink.
#include <algorithm>

#include "algorithms/allgather/steps.h"

namespace moeccl::allgather {

void ringSteps(PlanBuilder& plan, const Topology& topology, int rank, const Own& own) {
  const int ranks = topology.ranks();
  if (ranks - 1 > kMaxMessagesPerLane)
    throw NotOffered("ring sends " + std::to_string(ranks - 1) + " messages to one rank; at most " +
                     std::to_string(kMaxMessagesPerLane) + " can be told apart");
  const std::span<const int> order = topology.nodeByNode();
  const int position = static_cast<int>(std::ranges::find(order, rank) - order.begin());
  const auto at = [&](int steps) { return order[(position + steps + ranks) % ranks]; };
  OpRange arrived = own.ready;
  for (int i = 0; i < ranks - 1; ++i) {
    const At step{.step = own.step + i};
    // First, as linear does: of two ranks the plans are the same.
    const int next = plan.recv(step, at(-1), output(at(-i - 1)));
    plan.send(step, at(1), i == 0 ? own.block : output(at(-i)), {arrived});
    arrived = {next, 1};
  }
}

Plan ring(const Topology& topology, const Parameters&, int rank) {
  PlanBuilder plan;
  plan.copy({}, input(0), output(rank));
  ringSteps(plan, topology, rank, {input(0)});
  return plan.build();
}

}  // namespace moeccl::allgather
