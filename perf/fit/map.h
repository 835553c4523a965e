// Which schedule a profile makes the fastest, for layers of many sizes.
#pragma once

#include <moeccl/model.h>

#include <string>
#include <vector>

namespace moeccl::perf {

// Writes the JSON that perf/fit/README.md describes. Throws std::runtime_error.
void writeMap(const std::string& path, moecclProfile_t profile,
              const std::vector<int>& ranksPerNode, const std::vector<moecclGridShape_t>& shapes);

// The ranks on each node of the cluster that a profile is of, from its file. Throws
// std::runtime_error.
std::vector<int> ranksPerNodeOf(const std::string& profileFile);

}  // namespace moeccl::perf
