// In place of given_gpu.cc where the library is built without CUDA.
#include "src/base/error.h"
#include "src/route/row_compute.h"

namespace moeccl {

std::unique_ptr<GivenCompute> givenComputeOnGpu(moecclDataType_t) {
  throw Error(moecclInvalidUsage,
              "routes on GPUs need CUDA, and this library was built without it (meson -Dcuda)");
}

}  // namespace moeccl
