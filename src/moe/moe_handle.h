// What moecclMoeLayer_t points to, and the config that it was made from.
#pragma once

#include "src/moe/moe_layer.h"
#include "src/structs.h"

struct moecclMoeLayer {
  const int device;  // of a GPU; -1: host memory
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
