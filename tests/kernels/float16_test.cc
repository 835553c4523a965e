// Conversions of float16, against the compiler's.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>

#include "kernels/small_float.h"

namespace moeccl {
namespace {

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

}  // namespace
}  // namespace moeccl
