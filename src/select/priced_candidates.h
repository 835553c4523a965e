// The candidates for a collective whose plans differ, and what each costs, where nobody has
// measured them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "algorithms/registry.h"
#include "src/cost/price.h"

namespace moeccl {

struct PricedCandidate {
  AlgorithmChoice choice;
  std::shared_ptr<const NodePrice> price;
  std::uint64_t digest;  // of the plans that are priced
};
using PricedCandidates = std::vector<PricedCandidate>;

// All alternatives that are offered; given.algorithm alone where that is fixed. given.parameters
// has the grid and the experts, where the collective has them. To make the plans of a node takes
// milliseconds, so whoever asks the same while an answer is still held, the other ranks of this
// process or a group of the same shape, gets that one. May be called by several threads at once.
std::shared_ptr<const PricedCandidates> pricedCandidates(Collective collective,
                                                         const AlgorithmChoice& given,
                                                         const Topology& topology,
                                                         const Leaves& leaves = {});

// Nothing where it is not offered.
std::optional<PricedCandidate> pricedCandidate(const AlgorithmChoice& choice,
                                               const Topology& topology, const Leaves& leaves = {});

}  // namespace moeccl
