// What one thread of a GPU reduces: a pack of neighbouring elements. Nothing here needs a GPU, so
// that it is tested on hosts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/reduce.h"
#include "kernels/reduce_ops.h"
#include "kernels/vectors.h"

namespace moeccl {

// The addresses of one launch, in its parameters, which all drivers take up to 4 KiB.
struct ReduceTerms {
  std::byte* dst;
  std::size_t count;
  const std::byte* sources[cuda::kMaxTerms];
};

// Elements of a pack: 16 bytes where all addresses are multiples of 16, else one, at any address.
template <typename Format, bool kAligned>
constexpr int kPackElements = kAligned ? 16 / sizeof(typename Format::Bits) : 1;

// Elements [first, first + kElements); those are aligned to their size where there are several. All
// sources have been read when dst, which may be one of them, is written.
template <typename Format, typename Op, int kElements>
MOECCL_DEVICE void reducePack(const ReduceTerms& terms, Op op, std::uint64_t first) {
  using Bits = typename Format::Bits;
  using Value = decltype(Format::decode(Bits{}));
  const std::uint64_t at = first * sizeof(Bits);
  const auto load = [&](const std::byte* from, Bits* elements) {
    if constexpr (kElements == 1) {
      std::memcpy(elements, from + at, sizeof(Bits));
    } else {
      const auto vector = *reinterpret_cast<const Vector<16>*>(from + at);
      std::memcpy(elements, &vector, sizeof vector);
    }
  };
  Value values[kElements];
  Bits elements[kElements];
  load(terms.sources[0], elements);
  for (int i = 0; i < kElements; ++i) values[i] = Format::decode(elements[i]);
#ifdef __CUDA_ARCH__
#pragma unroll 4
#endif
  for (std::size_t term = 1; term < terms.count; ++term) {
    load(terms.sources[term], elements);
    for (int i = 0; i < kElements; ++i)
      values[i] = op.combine(values[i], Format::decode(elements[i]));
  }
  for (int i = 0; i < kElements; ++i) elements[i] = Format::encode(values[i]);
  if constexpr (kElements == 1) {
    std::memcpy(terms.dst + at, elements, sizeof(Bits));
  } else {
    Vector<16> vector;
    std::memcpy(&vector, elements, sizeof vector);
    *reinterpret_cast<Vector<16>*>(terms.dst + at) = vector;
  }
}

// The packs of `elements` elements, and then the elements that fill none, are numbered through.
inline std::uint64_t reduceItems(std::uint64_t elements, std::uint64_t packElements) {
  return elements / packElements + elements % packElements;
}

template <typename Format, typename Op, int kElements>
MOECCL_DEVICE void reduceItem(const ReduceTerms& terms, Op op, std::uint64_t elements,
                              std::uint64_t item) {
  const std::uint64_t packs = elements / kElements;
  if (item < packs)
    reducePack<Format, Op, kElements>(terms, op, item * kElements);
  else if constexpr (kElements > 1)
    reducePack<Format, Op, 1>(terms, op, packs * kElements + (item - packs));
}

}  // namespace moeccl
