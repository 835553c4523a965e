// The candidates for a collective whose plans differ, and what each costs, where nobody has
// measured them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "algorithms/registry.h"
#include "src/model/price.h"

namespace moeccl {

struct PricedCandidate {
  AlgorithmChoice choice;
  std::vector<PriceLine> lines;  // seconds by bytes of a block; the highest holds
  double blocksBetween;          // that a rank sends to other nodes: the mean of the largest node's
  std::uint64_t digest;          // of the plans that are priced
  bool relays;                   // as the plans say
};
using PricedCandidates = std::vector<PricedCandidate>;

// What a price depends on, beside the plans.
struct Wires {
  Links links;
  Sharing sharing;
  Leaves leaves = {};

  bool operator==(const Wires&) const = default;
};

// All alternatives that are offered; given.algorithm alone where that is fixed. given.parameters
// has the grid and the experts, where the collective has them. To make the plans of a node takes
// milliseconds, so this process keeps what was asked last: for its other ranks, for groups of the
// same shape, and for grids that differ where the collective's price does not. May be called by
// several threads at once.
std::shared_ptr<const PricedCandidates> pricedCandidates(Collective collective,
                                                         const AlgorithmChoice& given,
                                                         const Topology& topology,
                                                         const Wires& wires);

struct PricedPlans {
  NodePrice price;
  std::uint64_t digest;
  bool relays;
};
// The plans of the largest node's ranks, priced; nothing where the algorithm is not offered.
std::optional<PricedPlans> pricedPlans(const AlgorithmChoice& choice, const Topology& topology,
                                       const Leaves& leaves = {});

}  // namespace moeccl
