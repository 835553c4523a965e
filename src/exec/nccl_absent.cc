// In place of nccl_gpu.cc and nccl_library.cc where the library is built without CUDA.
#include "src/base/error.h"
#include "src/exec/nccl_gpu.h"

namespace moeccl {

std::shared_ptr<Gpu> openNcclGpu() {
  throw Error(
      moecclInvalidUsage,
      "GPU communicators need CUDA and NCCL, and this library was built without them (meson "
      "-Dcuda)");
}

}  // namespace moeccl
