// Ring reduce-scatter: partial sums travel around a ring, and every rank adds its own block to what
// passes. The ring walks node by node, so that each uplink carries each sum once in and once out.
//
//   position p:  step i: sum for p-1-i -> p+1, sum for p-2-i <- p-1, plus own block
//
// Steps P - 1, messages P - 1 per rank, bytes (P - 1) x block per rank and as many on each uplink.
#include <algorithm>

#include "algorithms/reducescatter/steps.h"

namespace moeccl::reducescatter {

int ringSteps(PlanBuilder& plan, const Topology& topology, int rank, Blocks result, int* step) {
  const int ranks = topology.ranks();
  if (ranks - 1 > kMaxMessagesPerLane)
    throw NotOffered("ring sends " + std::to_string(ranks - 1) + " messages to one rank; at most " +
                     std::to_string(kMaxMessagesPerLane) + " can be told apart");
  const std::span<const int> order = topology.nodeByNode();
  const int position = static_cast<int>(std::ranges::find(order, rank) - order.begin());
  const auto at = [&](int steps) { return order[((position + steps) % ranks + ranks) % ranks]; };
  *step = 2 * (ranks - 1);
  plan.reserve(3 * static_cast<size_t>(ranks));
  if (ranks == 1) {
    *step = 1;
    return plan.copy({}, input(0), result);
  }
  Blocks sum = input(at(-1));
  OpRange ready{0, 0};
  for (int i = 0; i < ranks - 1; ++i) {
    const At passing{.step = 2 * i}, adding{.step = 2 * i + 1};
    plan.send(passing, at(1), sum, {ready});
    const int owner = at(-2 - i);
    const Blocks arriving = scratch(plan.scratch({at(-1), owner}));
    const int arrived = plan.recv(passing, at(-1), arriving);
    sum = owner == rank ? result : scratch(plan.scratch({rank, owner}));
    ready = {plan.reduce(adding, {arriving, input(owner)}, sum, {{arrived}}), 1};
  }
  return ready.first;
}

Plan ring(const Topology& topology, const Parameters&, int rank) {
  PlanBuilder plan;
  int step;
  ringSteps(plan, topology, rank, output(0), &step);
  return plan.build();
}

}  // namespace moeccl::reducescatter
