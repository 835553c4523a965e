// The answer of a fit, for people: alpha and beta of every collective, and what links carry.
#pragma once

#include <string>

namespace moeccl::perf {

// The table of the profile in that file. It has its doubts, what pairs of ranks took, and for each
// collective and group the algorithm with the least alpha and the one with the least beta that is
// known.
std::string tableOf(const std::string& profileFile);

}  // namespace moeccl::perf
