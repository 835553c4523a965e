// Copies of blocks at odd addresses and sizes.
#include "kernels/copy.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace moeccl {
namespace {

TEST(CopyBlocks, LikeOneByteAfterAnother) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    const std::size_t sizes[] = {0, 1, 2, 3, 4, 8, 16, 31, 32, 64, 65, 300};
    const std::size_t bytes = sizes[random() % std::size(sizes)];
    const std::int64_t count = random() % 9;
    const auto stride = [&] { return static_cast<std::ptrdiff_t>(bytes + random() % 3 * 5); };
    std::ptrdiff_t dstStride = stride(), srcStride = stride();
    const std::size_t room = 4000;
    std::vector<std::byte> src(room), dst(room, std::byte{0xa5});
    for (std::byte& byte : src) byte = static_cast<std::byte>(random());
    std::size_t dstAt = random() % 7, srcAt = random() % 7;
    // Backwards as well.
    if (random() % 4 == 0 && count > 0) srcAt += (count - 1) * srcStride, srcStride = -srcStride;
    if (random() % 4 == 0 && count > 0) dstAt += (count - 1) * dstStride, dstStride = -dstStride;
    std::vector<std::byte> expected = dst;
    for (std::int64_t i = 0; i < count; ++i)
      for (std::size_t b = 0; b < bytes; ++b)
        expected[dstAt + i * dstStride + b] = src[srcAt + i * srcStride + b];
    copyBlocks(dst.data() + dstAt, dstStride, src.data() + srcAt, srcStride, bytes, count);
    ASSERT_EQ(dst, expected) << bytes << " bytes x " << count;
  }
}

TEST(CopyBlocks, OntoItselfDoesNothing) {
  std::vector<std::byte> data(100, std::byte{7});
  copyBlocks(data.data(), 10, data.data(), 10, 10, 10);
  copyBlocks(data.data(), 0, data.data(), 10, 10, 1);
  EXPECT_EQ(data, std::vector<std::byte>(100, std::byte{7}));
}

}  // namespace
}  // namespace moeccl
