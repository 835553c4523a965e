// Which GPU openGpu() opens, and which models NVLink joins.
#include "src/exec/gpu.h"

#include <atomic>

#include "src/exec/nccl_gpu.h"

namespace moeccl {
namespace {

std::atomic<std::shared_ptr<Gpu> (*)()> opener = &openNcclGpu;

}  // namespace

std::shared_ptr<Gpu> openGpu() { return opener.load()(); }

// PCIe cards with a bridge, NVL, are joined in pairs alone.
bool hasNvlink(std::string_view model) {
  const auto has = [model](std::string_view part) { return model.find(part) != model.npos; };
  return !has("NVL") && !has("PCI") &&
         (has("SXM") || has("HBM3") || has("H20") || has("B200") || has("B300"));
}

void replaceGpu(std::shared_ptr<Gpu> (*open)()) { opener = open == nullptr ? &openNcclGpu : open; }

}  // namespace moeccl
