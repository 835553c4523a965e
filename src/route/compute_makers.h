// What libmoeccl-moe brings to libmoeccl: what layers compute with, which needs a BLAS. It is all
// that crosses between the two beside the public API.
#pragma once

#include <memory>

#include "moeccl/moe.h"
#include "src/route/compute.h"

namespace moeccl {

// Throws Error.
using MakeCompute = std::unique_ptr<Compute> (*)(const LayerShape& shape);

struct ComputeMakers {
  MakeCompute cpu;
  // On the current device of the thread, which has to be current in every call.
  MakeCompute cuda;
  // Makes a device the thread's current one; returns which was. Throws Error.
  int (*exchangeDevice)(int device);
};

}  // namespace moeccl

extern "C" {

// moecclMoeLayerCreate. Exported under a version of the release's own, so that no other release's
// library can call it. `makers` must outlive the process's layers.
MOECCL_API moecclResult_t moecclInternalMakeLayer(const moeccl::ComputeMakers* makers,
                                                  moecclGrid_t grid,
                                                  const moecclMoeConfig_t* config,
                                                  moecclMoeLayer_t* layer);

}  // extern "C"
