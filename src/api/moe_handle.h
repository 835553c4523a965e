// What moecclMoeLayer_t points to, and the config that it was made from.
#pragma once

#include <optional>

#include "src/api/structs.h"
#include "src/comm/communicator.h"
#include "src/moe/moe_layer.h"

struct moecclMoeLayer {
  const std::optional<moeccl::Device> device;
  moeccl::MoeLayer layer;
};

namespace moeccl {

inline constexpr StructKind<moecclMoeConfig_t> kMoeConfig = {
    "config", "MOECCL_MOE_CONFIG_INITIALIZER", MOECCL_MOE_CONFIG_MAGIC};

}  // namespace moeccl
