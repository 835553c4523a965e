// The gate of a layer's config as kernels take it.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/gates/gate.h"
#include "moeccl/moe.h"

namespace moeccl {

// All but the capacity. The config's tokens, embedding, experts and topK have been checked. Throws
// Error (InvalidArgument), which names the field, its value and what would be right.
gates::Config gateConfig(const moecclMoeConfig_t& config);
// "moecclGateSoftmax"; the number of what is no gate.
std::string gateText(std::int64_t gate);

}  // namespace moeccl
