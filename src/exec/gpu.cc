#include "src/exec/gpu.h"

#include <atomic>

#include "src/exec/nccl_gpu.h"

namespace moeccl {
namespace {

std::atomic<std::shared_ptr<Gpu> (*)()> opener = &openNcclGpu;

}  // namespace

std::shared_ptr<Gpu> openGpu() { return opener.load()(); }

void replaceGpu(std::shared_ptr<Gpu> (*open)()) { opener = open == nullptr ? &openNcclGpu : open; }

}  // namespace moeccl
