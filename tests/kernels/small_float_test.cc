#include "kernels/small_float.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <random>

namespace moeccl {
namespace {

// Every value survives decode and encode, and decoding is monotonic.
template <typename Small>
void roundTrips() {
  const unsigned count = 1u << (8 * sizeof(typename Small::Bits));
  for (unsigned bits = 0; bits < count; ++bits) {
    const auto small = static_cast<typename Small::Bits>(bits);
    const float value = Small::decode(small);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(Small::decode(Small::encode(value))));
    } else if (std::isinf(value) && sizeof(typename Small::Bits) == 1) {
      // fp8 saturates: an infinity that came in goes out as the largest finite value.
      EXPECT_EQ(std::fabs(Small::decode(Small::encode(value))), Small::decode(Small::kLargest));
    } else {
      EXPECT_EQ(Small::encode(value), small) << value;
    }
  }
}

TEST(SmallFloat, RoundTrips) {
  roundTrips<Float16>();
  roundTrips<Bfloat16>();
  roundTrips<Float8e4m3>();
  roundTrips<Float8e5m2>();
}

TEST(SmallFloat, KnownValues) {
  EXPECT_EQ(Float16::decode(0x3c00), 1.0f);
  EXPECT_EQ(Float16::decode(0x7bff), 65504.0f);
  EXPECT_EQ(Float16::decode(0x0001), std::ldexp(1.0f, -24));
  EXPECT_EQ(Bfloat16::decode(0x3f80), 1.0f);
  EXPECT_EQ(Float8e4m3::decode(0x7e), 448.0f);
  EXPECT_EQ(Float8e4m3::decode(0x01), std::ldexp(1.0f, -9));
  EXPECT_EQ(Float8e5m2::decode(0x7b), 57344.0f);
  EXPECT_EQ(Float8e5m2::decode(0x3c), 1.0f);
  EXPECT_EQ(Float16::encode(65520.0f), 0x7c00);  // rounds up to infinity
  EXPECT_EQ(Float16::encode(65519.0f), 0x7bff);
  EXPECT_EQ(Float16::encode(1e30f), 0x7c00);
  EXPECT_EQ(Float8e4m3::encode(1e30f), 0x7e);
  EXPECT_EQ(Float8e5m2::encode(-1e30f), 0xfb);
  EXPECT_EQ(Float16::encode(-0.0f), 0x8000);
}

// Against the compiler's own float16, on bits of all kinds.
TEST(SmallFloat, Float16LikeTheCompilers) {
  std::mt19937 random(1);
  for (int i = 0; i < 200000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    const float scaled =
        i % 2 == 0 ? value : std::ldexp(std::fmod(value, 2.0f), -static_cast<int>(random() % 26));
    if (std::isnan(scaled)) continue;
    const auto expected = static_cast<_Float16>(scaled);
    std::uint16_t bits;
    std::memcpy(&bits, &expected, sizeof(bits));
    ASSERT_EQ(Float16::encode(scaled), bits) << scaled;
  }
}

// Bfloat16 is float32 without its lower half, rounded to nearest even.
TEST(SmallFloat, Bfloat16RoundsToNearestEven) {
  std::mt19937 random(2);
  for (int i = 0; i < 200000; ++i) {
    const auto bits = static_cast<std::uint32_t>(random());
    if (std::isnan(std::bit_cast<float>(bits))) continue;
    const std::uint32_t expected = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    ASSERT_EQ(Bfloat16::encode(std::bit_cast<float>(bits)), expected) << std::bit_cast<float>(bits);
  }
}

}  // namespace
}  // namespace moeccl
