// All-to-alls of bundles that are relayed: what a rank has for another is a list of blocks, which
// travels together with what others have. alltoall, dispatch and combine are made of them.
#pragma once

#include <vector>

#include "algorithms/registry.h"

namespace moeccl {

// What one rank has for, and gets from, every other. Bundles to itself are the caller's business.
class Bundles {
 public:
  virtual ~Bundles() = default;

  // What this rank has for `destination`, and the ops that it waits for.
  virtual BlockList leaving(int destination) const = 0;
  virtual OpRange ready(int /*destination*/) const { return {0, 0}; }
  // The places of what `source` has for this rank.
  virtual BlockList arriving(int source) const = 0;
  // New scratch for what `source` has for `destination`, in the order of both lists above.
  virtual BlockList held(PlanBuilder& plan, int source, int destination) const = 0;
};

// Both append ops on one lane, from a step on, and return those that bring what arrives. *at is
// then the first step after theirs.

// Bruck's: log_radix(P) rounds. See alltoall/bruck.cc.
std::vector<OpRange> exchangeInRounds(PlanBuilder& plan, const Topology& topology, int radix,
                                      int rank, const Bundles& bundles, At* at);
// By way of so many leaders of each node, 0 or less: all its ranks. See alltoall/hierarchical.cc.
std::vector<OpRange> exchangeByNodes(PlanBuilder& plan, const Topology& topology, int leaders,
                                     int rank, const Bundles& bundles, At* at);

}  // namespace moeccl
