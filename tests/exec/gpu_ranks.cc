#include "tests/exec/gpu_ranks.h"

namespace moeccl::test {
namespace {

GpuWorld* world = nullptr;
thread_local std::shared_ptr<GpuDouble> mine;

std::shared_ptr<Gpu> openDouble() {
  if (mine == nullptr) mine = world->newGpu();
  return mine;
}

}  // namespace

GpuRanks::GpuRanks(GpuWorld& ofTheDay) {
  world = &ofTheDay;
  replaceGpu(&openDouble);
}

GpuRanks::~GpuRanks() { replaceGpu(nullptr); }

GpuDouble& myGpu() {
  openDouble();
  return *mine;
}

}  // namespace moeccl::test
