// Copies of equally spaced blocks: packing, unpacking and transposing layouts are all this.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace moeccl {

// Copies `count` blocks of `bytes` bytes; block i goes from src + i * srcStride to dst + i *
// dstStride. Strides are in bytes and may be negative. No target overlaps a source, except that a
// block may be copied onto itself, which does nothing.
void copyBlocks(std::byte* dst, std::ptrdiff_t dstStride, const std::byte* src,
                std::ptrdiff_t srcStride, std::size_t bytes, std::int64_t count);

// The arguments of one copyBlocks.
struct BlockCopy {
  std::byte* dst;
  std::ptrdiff_t dstStride;
  const std::byte* src;
  std::ptrdiff_t srcStride;
  std::size_t bytes;
  std::int64_t count;
};

namespace cuda {

// As copyBlocks, all of them at once on a stream of the GPU, whose addresses they are. No target of
// one overlaps what another reads or writes. Throws Error.
void copyBlocks(std::span<const BlockCopy> copies, void* stream);

// How many copies one kernel does: their arguments fill the 4 KiB that all drivers take, and a
// single block has fewer.
inline constexpr std::size_t kMostCopies = 40, kMostSingle = 126;
inline std::size_t copiesPerLaunch(std::span<const BlockCopy> copies) {
  const bool single =
      std::ranges::all_of(copies, [](const BlockCopy& copy) { return copy.count <= 1; });
  return single && copies.size() > kMostCopies ? kMostSingle : kMostCopies;
}

}  // namespace cuda
}  // namespace moeccl
