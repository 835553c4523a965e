// A layer's config, as ranks compare it.
#pragma once

#include "moeccl/moe.h"
#include "src/base/structs.h"
#include "src/comm/communicator.h"

namespace moeccl {

inline constexpr StructKind<moecclMoeConfig_t> kMoeConfig = {
    "config", "MOECCL_MOE_CONFIG_INITIALIZER", MOECCL_MOE_CONFIG_MAGIC,
    MOECCL_END_OF(moecclMoeConfig_t, residual), MOECCL_END_OF(moecclMoeConfig_t, tokenRouting)};

// Collective. Throws Error (InvalidUsage) on every rank, which names the first field that differs.
// `requested`: the config's schedule, or what MOECCL_SCHEDULE says.
void requireSameConfig(Communicator& communicator, const moecclMoeConfig_t& config,
                       moecclSchedule_t requested);

}  // namespace moeccl
