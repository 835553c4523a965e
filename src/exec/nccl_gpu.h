// The real GPU: the CUDA runtime, and the NCCL that is found at run time.
#pragma once

#include <memory>

#include "src/exec/gpu.h"

namespace moeccl {

// One for the whole process. Throws as openGpu() does.
std::shared_ptr<Gpu> openNcclGpu();

}  // namespace moeccl
