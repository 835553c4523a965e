// The list of all algorithms. It is generated from algorithms/meson.build, where adding an
// algorithm is one line; its name there is its file, its function, its override value and its
// benchmark label.
#pragma once

#include <span>
#include <string_view>

#include "algorithms/collective.h"
#include "algorithms/topology.h"

namespace moeccl {

inline constexpr int kMaxChunks = 32;

// What an algorithm may be told besides the topology. All ranks of a call pass the same values.
struct Parameters {
  // Sends that linear algorithms keep in flight at once; 0 or less: all.
  int window = 16;
  // Bruck's: a rank number has log_radix(P) digits, and a round radix - 1 messages per digit.
  int radix = 2;
  // Ranks of a node that talk to other nodes for all of it, in the hierarchical all-to-all; 0 or
  // less: every rank.
  int leaders = 0;
  // Parts that a pipelined algorithm cuts its work into, kMaxChunks at most.
  int chunks = 4;
  // What the caller's grid is, and how many experts a rank holds, where the collective has them.
  Grid grid = {};
  int experts = 1;
  // The root, where the collective has one.
  int root = 0;

  bool operator==(const Parameters&) const = default;
};

// rank -> its plan. Pure; throws NotOffered where the algorithm does not apply.
using AlgorithmFunction = Plan (*)(const Topology&, const Parameters&, int rank);

struct Algorithm {
  Collective collective;
  std::string_view name;         // "hierarchical"
  std::string_view description;  // one line
  AlgorithmFunction plan;
  // An executor may have a function of its own for it, which it calls in place of the plan. On
  // hosts none has.
  bool native;
};

// How a collective is to be done. All ranks choose the same.
struct AlgorithmChoice {
  const Algorithm* algorithm = nullptr;
  Parameters parameters = {};

  bool operator==(const AlgorithmChoice&) const = default;
};

std::span<const Algorithm> algorithms();
// nullptr where there is none of that name.
const Algorithm* findAlgorithm(Collective collective, std::string_view name);
// The one listed first: what is used where nobody has chosen.
const Algorithm& firstAlgorithm(Collective collective);

}  // namespace moeccl
