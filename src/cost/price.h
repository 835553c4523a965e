// What a plan costs, from what links cost: for clusters that nobody has measured. It knows no algorithm
// by name.
#pragma once

#include <cstddef>
#include <span>

#include "algorithms/plan.h"
#include "algorithms/topology.h"

namespace moeccl {

// alpha: seconds for a message, whatever its size, at its sender; beta: seconds per byte.
struct Links {
  double alphaInNode = 2e-6, betaInNode = 0.2e-9;  // shared memory
  // Between nodes; beta is that of a node's uplink, which its ranks share.
  double alphaBetween = 20e-6, betaBetween = 0.8e-9;
  double betaMemory = 0.1e-9;  // copies and reductions, by what they read
};

// Seconds that the ranks of `node` take; plans[i] is that of its i-th rank. Blocks of `blockBytes` bytes.
// The plans run by streams (src/verify/verify.h), one step after another: a step takes what its messages
// and copies take together, and its messages between nodes share the uplink with those of the node's
// other ranks in the same step. Ranks of other nodes are taken to be no slower.
double price(const Topology& topology, int node, std::span<const Plan> plans,
             std::size_t blockBytes, const Links& links = {});

}  // namespace moeccl
