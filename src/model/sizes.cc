// Multiplies sizes of dimensions into counts of elements. A count whose elements of 8 bytes would
// exceed the address space throws.
#include "src/model/sizes.h"

#include "src/base/error.h"

namespace moeccl {
namespace {

template <typename List>
std::int64_t product(const List& sizes) {
  std::int64_t product = 8;
  bool zero = false, tooLarge = false;
  for (const std::int64_t size : sizes) {
    zero |= size == 0;
    tooLarge |= __builtin_mul_overflow(product, size, &product);
  }
  if (zero) return 0;
  if (tooLarge)
    throw Error(moecclInvalidArgument,
                "the layer's buffers exceed the address space; fewer tokens, experts or a smaller "
                "capacityFactor would fit");
  return product / 8;
}

}  // namespace

std::int64_t elementCount(std::initializer_list<std::int64_t> sizes) { return product(sizes); }

namespace schedules {

std::int64_t Sizes::elements(std::span<const Dim> shape) const {
  std::array<std::int64_t, 8> sizes;
  sizes.fill(1);
  for (std::size_t i = 0; i < shape.size(); ++i)
    i < sizes.size() ? sizes[i] = at(shape[i]) : sizes.back() *= at(shape[i]);
  return product(sizes);
}

std::int64_t Sizes::paddedTokens(const Table& table) const {
  return at(*std::ranges::find_if(table.shape, isTokens));
}

std::int64_t Sizes::firstToken(const Table& table, std::int64_t part) const {
  const Dim dim = *std::ranges::find_if(table.shape, isTokens);
  std::int64_t first = 0;
  if (dim == Dim::partTokens || dim == Dim::chunkTokens) first = part * at(Dim::partTokens);
  if (ofChunk(dim)) first += table.chunk * at(dim);
  return std::min(at(Dim::tokens), first);
}

}  // namespace schedules
}  // namespace moeccl
