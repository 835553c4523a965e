// Copies blocks on the host: in one memcpy where they are contiguous, else by loops for their size
// up to 64 bytes, and by a memcpy for each beyond.
#include <bit>
#include <cstring>

#include "kernels/copy.h"

namespace moeccl {
namespace {

// Blocks of kBytes and of up to twice as many. With the size known, the compiler turns each block
// into a few register moves; sizes between two powers of two are as many bytes from the block's
// begin and from its end, which overlap.
template <std::size_t kBytes>
void copySmall(std::byte* dst, std::ptrdiff_t dstStride, const std::byte* src,
               std::ptrdiff_t srcStride, std::size_t bytes, std::int64_t count) {
  if (bytes == kBytes) {
    for (std::int64_t i = 0; i < count; ++i)
      std::memcpy(dst + i * dstStride, src + i * srcStride, kBytes);
    return;
  }
  const std::size_t rest = bytes - kBytes;
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(dst + i * dstStride, src + i * srcStride, kBytes);
    std::memcpy(dst + i * dstStride + rest, src + i * srcStride + rest, kBytes);
  }
}

// Blocks of any size, by one call of libc each.
void copyLarge(std::byte* dst, std::ptrdiff_t dstStride, const std::byte* src,
               std::ptrdiff_t srcStride, std::size_t bytes, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i)
    std::memcpy(dst + i * dstStride, src + i * srcStride, bytes);
}

}  // namespace

void copyBlocks(std::byte* dst, std::ptrdiff_t dstStride, const std::byte* src,
                std::ptrdiff_t srcStride, std::size_t bytes, std::int64_t count) {
  if (bytes == 0 || count == 0 || (dst == src && (dstStride == srcStride || count == 1))) return;
  const auto block = static_cast<std::ptrdiff_t>(bytes);
  if (count == 1 || (dstStride == block && srcStride == block)) {
    std::memcpy(dst, src, bytes * static_cast<std::size_t>(count));
    return;
  }
  const auto copy = [&](auto function) { function(dst, dstStride, src, srcStride, bytes, count); };
  if (bytes > 64) return copy(copyLarge);
  switch (std::bit_floor(bytes)) {
    case 1:
      return copy(copySmall<1>);
    case 2:
      return copy(copySmall<2>);
    case 4:
      return copy(copySmall<4>);
    case 8:
      return copy(copySmall<8>);
    case 16:
      return copy(copySmall<16>);
    case 32:
      return copy(copySmall<32>);
    default:
      return copy(copySmall<64>);
  }
}

}  // namespace moeccl
