// In place of compute_cuda.cc and router_cuda.cc where the library is built without CUDA.
#include "src/base/error.h"
#include "src/moe/compute_cuda.h"

namespace moeccl {

namespace {

[[noreturn]] void refuse() {
  throw Error(moecclInvalidUsage,
              "layers on GPUs need CUDA, and this library was built without it (meson -Dcuda)");
}

}  // namespace

std::unique_ptr<Compute> cudaCompute(const LayerShape&) { refuse(); }
int exchangeCudaDevice(int) { refuse(); }

}  // namespace moeccl
