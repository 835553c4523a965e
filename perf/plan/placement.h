// Where the groups of a layer can lie on the nodes.
#pragma once

#include <moeccl/moeccl.h>

#include <string>
#include <vector>

#include "perf/plan/options.h"

namespace moeccl::perf::plan {

// Every grid of the ranks that the layer's experts and hidden units can be shared out on, with both
// orders where they differ; those that differ in N_MP alone together. Throws std::runtime_error
// where there is none.
std::vector<moecclGridShape_t> placementsOf(const PredictOptions& options);

// Which groups have each all of their ranks on one node: "MP ESP", or "-".
std::string groupsInNodes(const moecclGridShape_t& shape, const std::vector<int>& ranksPerNode);

}  // namespace moeccl::perf::plan
