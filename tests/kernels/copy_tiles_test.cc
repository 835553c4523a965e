// How copies are cut into tiles for threads of a GPU.
#include "kernels/copy_tiles.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

namespace moeccl {
namespace {

TEST(CopyTiles, AccessesAreAsWideAsAddressesAllow) {
  alignas(16) static std::byte from[256], to[256];
  const auto width = [](std::size_t dst, std::ptrdiff_t stride, std::size_t bytes,
                        std::int64_t count) {
    return tiled({to + dst, stride, from, 64, bytes, count}).width;
  };
  EXPECT_EQ(width(0, 64, 48, 3), 16u);
  EXPECT_EQ(width(0, -64, 47, 3), 16u);
  EXPECT_EQ(width(0, 72, 48, 3), 8u);
  EXPECT_EQ(width(4, 64, 48, 3), 4u);
  EXPECT_EQ(width(0, 50, 48, 3), 2u);
  EXPECT_EQ(width(1, 64, 48, 3), 1u);
  EXPECT_EQ(width(0, 50, 48, 1), 16u) << "the stride of one block does not matter";
}

TEST(CopyTiles, NothingToCopyHasNoTile) {
  std::byte data[64];
  EXPECT_EQ(tiled({data, 8, data + 32, 8, 0, 3}).tiles(), 0u);
  EXPECT_EQ(tiled({data, 8, data + 32, 8, 8, 0}).tiles(), 0u);
  EXPECT_EQ(tiled({data, 8, data, 8, 8, 3}).tiles(), 0u);
  EXPECT_EQ(tiled({data, 8, data, 16, 8, 1}).tiles(), 0u);
}

// Memory that is there when it is touched.
class Sparse {
 public:
  explicit Sparse(std::size_t bytes)
      : bytes_(bytes),
        at_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~Sparse() { munmap(at_, bytes_); }
  bool made() const { return at_ != MAP_FAILED; }
  std::byte* data() const { return static_cast<std::byte*>(at_); }

 private:
  std::size_t bytes_;
  void* at_;
};

// The last tiles of copies whose offsets, and whose numbers of items, do not fit into 32 bits.
TEST(CopyTiles, BeyondFourGibibytes) {
  struct Shape {
    std::size_t bytes, gap;
    std::int64_t count;
  };
  const std::size_t large = (std::size_t{1} << 32) + 12345;
  const Shape shapes[] = {
      {large, 0, 1}, {large, 1, 1}, {16, 16, 1 << 28}, {3, 0, 1500000000}, {65536, 16, 70000}};
  for (const Shape& shape : shapes) {
    const std::size_t stride = shape.bytes + shape.gap, room = stride * shape.count + 64;
    const Sparse from(room), to(room);
    ASSERT_TRUE(from.made() && to.made());
    const std::size_t end = stride * (shape.count - 1) + shape.bytes;
    for (std::size_t i = 0; i < 64; ++i) from.data()[end - 64 + i] = static_cast<std::byte>(i + 1);
    const auto apart = static_cast<std::ptrdiff_t>(stride);
    CopyBatch<1> batch;
    batch.add({to.data() + shape.gap % 16, apart, from.data() + shape.gap % 16, apart, shape.bytes,
               shape.count});
    const Sparse* const ends[] = {&from, &to};
    ASSERT_GT(batch.tiles(), 65536u);
    for (const Sparse* side : ends) side->data()[end + shape.gap % 16] = std::byte{99};
    for (std::uint64_t tile = batch.tiles() - 3; tile < batch.tiles(); ++tile)
      for (std::uint32_t thread = 0; thread < kTileThreads; ++thread) copyPart(batch, tile, thread);
    for (std::size_t at = end - 16; at < end + shape.gap % 16; ++at) {
      if ((at - shape.gap % 16) % stride >= shape.bytes) continue;
      ASSERT_EQ(to.data()[at], from.data()[at]) << "byte " << at << " of " << end;
    }
    EXPECT_EQ(to.data()[end + shape.gap % 16], std::byte{99});
  }
}

}  // namespace
}  // namespace moeccl
