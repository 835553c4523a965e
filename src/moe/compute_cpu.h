// The layer's computation by the caller's own thread, on host memory.
#pragma once

#include <memory>

#include "src/route/compute.h"

namespace moeccl {

std::unique_ptr<Compute> cpuCompute(const LayerShape& shape);

}  // namespace moeccl
