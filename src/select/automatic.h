// The algorithm that nobody has chosen: the one that src/cost prices lowest.
#pragma once

#include <cstddef>
#include <deque>

#include "algorithms/registry.h"

namespace moeccl {

// For blocks of about `blockBytes` bytes; `problem` has the grid and the experts, where the collective has
// them. The same on all ranks. It builds plans, so callers remember the answer.
AlgorithmChoice chooseAutomatically(Collective collective, const Topology& topology,
                                    const Parameters& problem, std::size_t blockBytes);

// Remembers the answers for one topology. Sizes within a factor of two share one.
class ChoiceCache {
 public:
  const AlgorithmChoice& get(Collective collective, const Topology& topology,
                             const Parameters& problem, std::size_t blockBytes);

 private:
  struct Entry {
    Collective collective;
    int sizeClass;
    Parameters problem;
    AlgorithmChoice choice;
  };
  std::deque<Entry> entries_;  // the one last asked for first
};

}  // namespace moeccl
