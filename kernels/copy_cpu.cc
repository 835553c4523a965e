#include <cstring>

#include "kernels/copy.h"

namespace moeccl {
namespace {

// With the size known, the compiler turns each block into a few register moves.
template <std::size_t kBytes>
void copyFixed(std::byte* dst, std::ptrdiff_t dstStride, const std::byte* src,
               std::ptrdiff_t srcStride, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i)
    std::memcpy(dst + i * dstStride, src + i * srcStride, kBytes);
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
  switch (bytes) {
    case 1:
      return copyFixed<1>(dst, dstStride, src, srcStride, count);
    case 2:
      return copyFixed<2>(dst, dstStride, src, srcStride, count);
    case 4:
      return copyFixed<4>(dst, dstStride, src, srcStride, count);
    case 8:
      return copyFixed<8>(dst, dstStride, src, srcStride, count);
    case 16:
      return copyFixed<16>(dst, dstStride, src, srcStride, count);
    case 32:
      return copyFixed<32>(dst, dstStride, src, srcStride, count);
    case 64:
      return copyFixed<64>(dst, dstStride, src, srcStride, count);
    default:
      break;
  }
  for (std::int64_t i = 0; i < count; ++i)
    std::memcpy(dst + i * dstStride, src + i * srcStride, bytes);
}

}  // namespace moeccl
