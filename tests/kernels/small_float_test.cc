// Conversions of 8- and 16-bit floats, value by value.
#include "kernels/small_float.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "tests/kernels/plain.h"

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

// Decodes all values, and encodes those around every value and around every border between two.
template <typename Small>
void likeThePlainLoops(moecclDataType_t datatype) {
  const NarrowFormat format = *narrowFormat(datatype);
  const auto same = [&](float value) {
    ASSERT_EQ(Small::encode(value), plainEncode(format, value)) << value;
  };
  const auto around = [&](float value) {
    for (float sign : {1.0f, -1.0f}) {
      same(sign * value);
      same(sign * std::nextafter(value, std::numeric_limits<float>::infinity()));
      same(sign * std::nextafter(value, -std::numeric_limits<float>::infinity()));
    }
  };
  float before = 0;
  for (unsigned bits = 0; bits < 1u << (8 * sizeof(typename Small::Bits)); ++bits) {
    const float value = plainDecode(format, bits);
    const float decoded = Small::decode(static_cast<typename Small::Bits>(bits));
    ASSERT_EQ(std::bit_cast<std::uint32_t>(decoded), std::bit_cast<std::uint32_t>(value)) << bits;
    around(value);
    around(before + (value - before) / 2);
    before = value;
  }
  // Infinity, the NaNs next to it and the last, of both signs.
  for (std::uint32_t bits : {0x7f800000u, 0x7f800001u, 0x7fc00000u, 0x7fffffffu})
    for (std::uint32_t sign : {0u, 1u << 31}) same(std::bit_cast<float>(sign | bits));
  std::mt19937 random(3);
  for (int i = 0; i < 200000; ++i) same(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
}

TEST(SmallFloat, LikeThePlainLoops) {
  likeThePlainLoops<Float16>(moecclFloat16);
  likeThePlainLoops<Bfloat16>(moecclBfloat16);
  likeThePlainLoops<Float8e4m3>(moecclFloat8e4m3);
  likeThePlainLoops<Float8e5m2>(moecclFloat8e5m2);
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
