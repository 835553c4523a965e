// Whether the ranks of a grid want one layer.
#pragma once

#include "moeccl/moe.h"

namespace moeccl {

// Collective. Throws Error (InvalidUsage) on every rank, which names the first field that differs.
// `requested`: the config's schedule, or what MOECCL_SCHEDULE says.
void requireSameConfig(moecclGrid_t grid, const moecclMoeConfig_t& config,
                       moecclSchedule_t requested);

}  // namespace moeccl
