// The plans that move a routing's rows. Blocks are rows, all of one size: of the input and the
// output as each function says, and of the scratch.
#pragma once

#include <vector>

#include "algorithms/plan.h"
#include "algorithms/routes/route.h"

namespace moeccl::routes {

// What a rank knows of a routing.
struct Knowledge {
  const Topology& topology;
  const Way& way;
  int rank;
  const Home& home;
  const Relay& relay;
  const Here& here;
};

// input [tokens] -> output [places].
Plan dispatchPlan(const Knowledge& known);

// input [places] -> output [tokens], summed as routes/route.h says. Tokens without a kept choice
// are not written.
struct CombinePlan {
  Plan plan;
  // The weight of each scratch block that a choice's row arrives in; these blocks are the plan's
  // first ones. Empty where rows have no weights.
  std::vector<float> weights;
};
CombinePlan combinePlan(const Knowledge& known);

// Values of choices, such as gradients of weights: input [places] -> output [tokens * choices],
// summed over the shards of the expert in their order; straight from rank to rank. Choices that are
// not kept are not written.
Plan returnPlan(const Knowledge& known);

// The exchanges of latency mode, which need no knowledge of a routing: all-to-alls by way of the
// relays. Block r of the input is what this rank has for rank r, of the output what it gets from
// there. How many rows a block has, and which of them are one and the same, only messages say.
// Messages to and from relays are on lane kRelayLane, between a relay and the ranks of experts on
// kHolderLane; the one copy is last.
inline constexpr int kRelayLane = 0, kHolderLane = 1;
Plan latencyDispatchPlan(const Topology& topology, const Way& way, int rank);
Plan latencyCombinePlan(const Topology& topology, const Way& way, int rank);

}  // namespace moeccl::routes
