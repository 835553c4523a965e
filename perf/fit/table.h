// The answer of a fit, for people: alpha and beta of every collective, and what links cost.
#pragma once

#include <string>

namespace moeccl::perf {

// The table of the profile in that file. It has for each collective and group the algorithm with
// the least alpha and the one with the least beta that is known, and the links that samples tell
// of.
std::string tableOf(const std::string& profileFile);

}  // namespace moeccl::perf
