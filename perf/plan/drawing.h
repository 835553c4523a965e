// Plans and schedules as pictures.
#pragma once

#include <string>

namespace moeccl::perf::plan {

// Writes a graph for Graphviz. Throws std::runtime_error.
void writeDot(const std::string& path, const std::string& graph);
// Writes it as a picture, which Graphviz's dot makes. Throws std::runtime_error, also where there
// is no dot.
void writeSvg(const std::string& path, const std::string& graph);

}  // namespace moeccl::perf::plan
