// What moecclMoeLayer_t points to, and the config that it was made from.
#pragma once

#include <optional>

#include "src/comm/communicator.h"
#include "src/moe/moe_layer.h"
#include "src/structs.h"

struct moecclMoeLayer {
  const std::optional<moeccl::Device> device;
  moeccl::MoeLayer layer;
};

struct moecclMoePass {
  moecclMoeLayer_t layer = nullptr;
  moeccl::OwnPass* pass = nullptr;  // the layer's
};

namespace moeccl {

inline constexpr StructKind<moecclMoeConfig_t> kMoeConfig = {
    "config", "MOECCL_MOE_CONFIG_INITIALIZER", MOECCL_MOE_CONFIG_MAGIC,
    MOECCL_END_OF(moecclMoeConfig_t, residual), MOECCL_END_OF(moecclMoeConfig_t, residual)};

}  // namespace moeccl
