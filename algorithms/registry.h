// The list of all algorithms. It is generated from algorithms/meson.build, where adding an
// algorithm is one line; its name there is its file, its function, its override value and its
// benchmark label.
#pragma once

#include <span>
#include <string_view>

#include "algorithms/collective.h"
#include "algorithms/topology.h"

namespace moeccl {

// What an algorithm may be told besides the topology. All ranks of a call pass the same values.
struct Parameters {
  // Sends that linear algorithms keep in flight at once.
  int window = 16;

  bool operator==(const Parameters&) const = default;
};

// rank -> its plan. Pure; throws NotOffered where the algorithm does not apply.
using AlgorithmFunction = Plan (*)(const Topology&, const Parameters&, int rank);

struct Algorithm {
  Collective collective;
  std::string_view name;         // "hierarchical"
  std::string_view description;  // one line
  AlgorithmFunction plan;
};

std::span<const Algorithm> algorithms();
// nullptr where there is none of that name.
const Algorithm* findAlgorithm(Collective collective, std::string_view name);
// The one listed first: what is used where nobody has chosen.
const Algorithm& firstAlgorithm(Collective collective);

}  // namespace moeccl
