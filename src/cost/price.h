// What a plan costs, from what links cost: for clusters that nobody has measured. It knows no algorithm
// by name.
#pragma once

#include <cstddef>
#include <span>

#include "algorithms/plan.h"
#include "algorithms/topology.h"

namespace moeccl {

// Seconds, in the manner of LogGP. A message takes its sender `overhead`, and arrives `latency` after it
// was sent; latencies of messages that are under way together pass together. beta is per byte.
struct Links {
  double overheadInNode = 0.3e-6, latencyInNode = 0.5e-6, betaInNode = 0.2e-9;  // shared memory
  double overheadBetween = 5e-6, latencyBetween = 15e-6;                        // between nodes
  // Of a node's uplink, which its ranks share: the least that a message takes, and per byte.
  double gapUplink = 2e-6, betaUplink = 0.8e-9;
  // By how much more than `alone` messages of a rank at once slow each other's bytes down: a part of
  // their time for each of the others.
  double crowding = 0.01;
  int alone = 4;
  // Copies, also to gather what is sent, and reductions, by what they read.
  double betaMemory = 0.1e-9;
};

// Seconds that the ranks of `node` take; plans[i] is that of its i-th rank. Blocks of `blockBytes` bytes.
// The plans run by streams (src/verify/verify.h), one step after another: a step takes what its messages
// and copies take together, and its messages between nodes share the uplink with those of the node's
// other ranks in the same step. Ranks of other nodes are taken to be no slower.
double price(const Topology& topology, int node, std::span<const Plan> plans,
             std::size_t blockBytes, const Links& links = {});

}  // namespace moeccl
