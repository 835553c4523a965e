// Copies of equally spaced blocks: packing, unpacking and transposing layouts are all this.
#pragma once

#include <cstddef>
#include <cstdint>

namespace moeccl {

// Copies `count` blocks of `bytes` bytes; block i goes from src + i * srcStride to dst + i *
// dstStride. Strides are in bytes and may be negative. No target overlaps a source, except that a
// block may be copied onto itself, which does nothing.
void copyBlocks(std::byte* dst, std::ptrdiff_t dstStride, const std::byte* src,
                std::ptrdiff_t srcStride, std::size_t bytes, std::int64_t count);

}  // namespace moeccl
