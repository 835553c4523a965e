// Plans as pictures.
#pragma once

#include <span>
#include <string>

#include "algorithms/plan.h"

namespace moeccl::perf::plan {

// Writes a Graphviz graph of rank `rank`, or of all where it is below 0. Throws std::runtime_error.
void writeDot(const std::string& path, std::span<const Plan> plans, int rank);
// The same as a picture, which Graphviz's dot makes. Throws std::runtime_error, also where there is no dot.
void writeSvg(const std::string& path, std::span<const Plan> plans, int rank);

}  // namespace moeccl::perf::plan
