// The real GPU: the CUDA runtime, and the NCCL that is found at run time.
#pragma once

#include <memory>

#include "src/exec/gpu.h"

namespace moeccl {

struct NcclLibrary;

// One for the whole process. Throws as openGpu() does.
std::shared_ptr<Gpu> openNcclGpu();
// The CUDA runtime, and these functions of NCCL.
std::shared_ptr<Gpu> makeNcclGpu(const NcclLibrary& nccl);

}  // namespace moeccl
