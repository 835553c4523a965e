// Whether the ranks of a grid want one layer.
#pragma once

#include <cstddef>
#include <functional>

#include "moeccl/moe.h"

namespace moeccl {

// What each rank has, `bytes` bytes of host memory. Waits for it. Throws Error.
using AllGather = std::function<void(const void* send, void* recv, std::size_t bytes)>;

// Collective. Throws Error (InvalidUsage) on every rank, which names the first field that differs.
// `requested`: the config's schedule, or what MOECCL_SCHEDULE says.
void requireSameConfig(int ranks, const AllGather& allGather, const moecclMoeConfig_t& config,
                       moecclSchedule_t requested);

}  // namespace moeccl
