// The layer's computation on a GPU: the current device of the thread that makes it, which has to be
// current in every call.
#pragma once

#include <memory>

#include "src/route/compute.h"

namespace moeccl {

// Throws Error: InvalidArgument for float64, UnhandledCudaError, InvalidUsage when built without
// CUDA.
std::unique_ptr<Compute> cudaCompute(const LayerShape& shape);

// Makes a device the thread's current one; returns which was. Throws Error.
int exchangeCudaDevice(int device);

}  // namespace moeccl
