// A choice of algorithm in words, as in MOECCL_ALGO, benchmark labels and profiles:
// "bruck:radix=4".
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "algorithms/registry.h"

namespace moeccl {

struct NamedParameter {
  std::string_view name;
  int Parameters::*value;
  int least, most;
};
// The parameters that users may set, with their bounds.
std::span<const NamedParameter> namedParameters();

// The algorithm, and the parameters that are not the usual ones. "auto" where there is no
// algorithm.
std::string textOf(const AlgorithmChoice& choice);

// What users wrote, as textOf has it, with white space around words. Throw std::invalid_argument,
// which says what is there instead.
Collective readCollective(std::string_view name);
AlgorithmChoice readChoice(Collective collective, std::string_view text);

// Without the white space around it.
std::string_view trimmed(std::string_view text);
// As a message repeats it: not more than a line of it.
std::string quoted(std::string_view text);

}  // namespace moeccl
