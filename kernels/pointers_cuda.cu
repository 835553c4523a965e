// Stores pointers in a GPU's memory by kernels that have them in their parameters.
#include "kernels/launch_cuda.h"
#include "kernels/pointers_cuda.h"

namespace moeccl::cuda {
namespace {

// Pointers of each matrix in one launch, in its parameters.
constexpr std::size_t kPointersAtOnce = 160;
struct PointerBatch {
  ProductPointers pointers[kPointersAtOnce];
};
static_assert(sizeof(PointerBatch) + sizeof(PointerArrays) + sizeof(int) <= 4096);

__global__ void __launch_bounds__(kThreads)
    pointersKernel(const __grid_constant__ PointerBatch batch, PointerArrays arrays, int count) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= count) return;
  arrays.a[i] = batch.pointers[i].a;
  arrays.b[i] = batch.pointers[i].b;
  arrays.c[i] = batch.pointers[i].c;
}

}  // namespace

PointerArrays storePointers(std::span<const ProductPointers> pointers, std::byte* memory,
                            void* stream) {
  auto** const first = reinterpret_cast<const void**>(memory);
  const PointerArrays all{first, first + kMostPointers,
                          reinterpret_cast<void**>(memory) + 2 * kMostPointers};
  for (std::size_t begin = 0; begin < pointers.size(); begin += kPointersAtOnce) {
    const auto part = pointers.subspan(begin, std::min(kPointersAtOnce, pointers.size() - begin));
    PointerBatch batch;
    std::copy(part.begin(), part.end(), batch.pointers);
    launchKernel("storing pointers", pointersKernel, 1, kThreads, stream, batch,
                 {all.a + begin, all.b + begin, all.c + begin}, static_cast<int>(part.size()));
  }
  return all;
}

}  // namespace moeccl::cuda
