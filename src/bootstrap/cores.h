// Which cores a process may use, and who shares them with it.
#pragma once

#include <cstdint>
#include <span>

#include "src/bootstrap/host.h"

namespace moeccl {

// Plain bytes, for an Oob's all-gather.
struct Cores {
  std::uint64_t which = 0;       // equal: the same cores, by affinity and control group
  std::uint64_t scheduling = 0;  // equal: one group, to the kernel's scheduler
  std::int32_t count = 1;        // how many, at most
};

// The cores that the calling process may use.
Cores availableCores();

// Ranks that share the cores of `rank`, itself included.
int ranksThatShare(std::span<const Cores> byRank, int rank);
// Whether these ranks outnumber the cores, and the scheduler tells some of them apart. It does not
// go on to another group when a rank yields.
bool crowdedAcrossGroups(std::span<const Cores> byRank, int rank);

}  // namespace moeccl
