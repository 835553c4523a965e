// In place of cuda_memory.cc in a build without CUDA.
#include <stdexcept>

#include "perf/common/memory.h"

namespace moeccl::perf {

std::unique_ptr<Memory> openCudaMemory() {
  throw std::runtime_error(
      "--memory cuda: this program was built without CUDA (meson -Dcuda=enabled)");
}

}  // namespace moeccl::perf
