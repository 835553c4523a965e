// The candidates for a collective that nobody has fixed: every algorithm, with its usual parameters
// and with some others. The same on all ranks, in the same order.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "algorithms/registry.h"

namespace moeccl {

// `problem`: the grid and the experts, where the collective has them. Whether they are offered is
// not looked at, nor whether their plans differ.
std::vector<AlgorithmChoice> alternatives(Collective collective, const Parameters& problem);

// The alternative of that name, as textOf gives it: "bruck:radix=4". Allocates nothing.
std::optional<AlgorithmChoice> alternativeNamed(Collective collective, const Parameters& problem,
                                                std::string_view name);

// The digest of the plans of the largest node's ranks, which have most to do; nothing where they
// are not offered.
std::optional<std::uint64_t> digestOf(const AlgorithmChoice& choice, const Topology& topology);
// Both are offered and have the same plans, such as ring and linear of two ranks.
bool samePlans(const AlgorithmChoice& one, const AlgorithmChoice& other, const Topology& topology);
// Those of `all`, in their order, whose plans are offered and differ from the plans of each one
// before. A native algorithm, which executors run by a function of their own, differs from one with
// the same plans that is not native.
std::vector<AlgorithmChoice> differentOf(const std::vector<AlgorithmChoice>& all,
                                         const Topology& topology);

// The node with most ranks, which has most to do.
int largestNode(const Topology& topology);
// The plans of its ranks, or nothing where the algorithm is not offered.
std::optional<std::vector<Plan>> plansOf(const AlgorithmChoice& choice, const Topology& topology,
                                         int node);

}  // namespace moeccl
