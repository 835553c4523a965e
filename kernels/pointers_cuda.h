// Pointers to the matrices of many products, which cuBLAS takes from the GPU's memory.
#pragma once

#include <cstddef>
#include <span>

namespace moeccl::cuda {

constexpr std::size_t kMostPointers = 4096;
constexpr std::size_t kPointersBytes = 3 * kMostPointers * sizeof(void*);

struct ProductPointers {
  const void *a, *b;
  void* c;
};

struct PointerArrays {
  const void **a, **b;
  void** c;
};

// Puts up to kMostPointers of each into `memory`, of kPointersBytes, on a stream. The span may go
// when it returns.
PointerArrays storePointers(std::span<const ProductPointers> pointers, std::byte* memory,
                            void* stream);

}  // namespace moeccl::cuda
