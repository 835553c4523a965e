// A choice of algorithm in words, as in MOECCL_ALGO, benchmark labels and profiles: "bruck:radix=4".
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "algorithms/registry.h"

namespace moeccl {

struct NamedParameter {
  std::string_view name;
  int Parameters::*value;
};
// Those that users may set.
std::span<const NamedParameter> namedParameters();

// The algorithm, and the parameters that are not the usual ones. "auto" where there is no algorithm.
std::string textOf(const AlgorithmChoice& choice);

}  // namespace moeccl
