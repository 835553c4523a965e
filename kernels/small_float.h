// Conversions between float32 and the narrow floating-point types.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace moeccl {

// A narrow float: sign, kExponent exponent bits, kMantissa mantissa bits. kFinite: the "fn" kind
// (no infinity, one NaN of all ones). Encoding rounds to nearest, ties to even; what is too large
// becomes infinity, or the largest finite value where kSaturates.
template <typename BitsType, int kExponent, int kMantissa, bool kFinite, bool kSaturates>
struct SmallFloat {
  using Bits = BitsType;
  static constexpr int kBias = (1 << (kExponent - 1)) - 1;
  static constexpr unsigned kMagnitude = (1u << (kExponent + kMantissa)) - 1;
  static constexpr unsigned kInfinity = ((1u << kExponent) - 1) << kMantissa;
  static constexpr unsigned kNan = kFinite ? kMagnitude : kInfinity | 1u << (kMantissa - 1);
  static constexpr unsigned kLargest = kFinite ? kMagnitude - 1 : kInfinity - 1;

  static float decode(Bits bits) {
    const unsigned magnitude = bits & kMagnitude;
    const float sign = bits > kMagnitude ? -1.0f : 1.0f;
    if (kFinite ? magnitude == kMagnitude : magnitude > kInfinity)
      return std::numeric_limits<float>::quiet_NaN();
    if (!kFinite && magnitude == kInfinity) return sign * std::numeric_limits<float>::infinity();
    const int exponent = static_cast<int>(magnitude >> kMantissa);
    const unsigned mantissa = magnitude & ((1u << kMantissa) - 1);
    const unsigned significand = exponent == 0 ? mantissa : mantissa | 1u << kMantissa;
    return sign * std::ldexp(static_cast<float>(significand),
                             (exponent == 0 ? 1 : exponent) - kBias - kMantissa);
  }

  static Bits encode(float value) {
    const unsigned sign = std::signbit(value) ? kMagnitude + 1 : 0;
    if (std::isnan(value)) return static_cast<Bits>(sign | kNan);
    const float size = std::fabs(value);
    unsigned magnitude;
    if (std::isinf(size)) {
      magnitude = std::numeric_limits<unsigned>::max() / 2;
    } else {
      // The last place of the result, then how many of them; a carry runs into the exponent by
      // itself.
      const int exponent = size == 0 ? 1 - kBias : std::max(std::ilogb(size), 1 - kBias);
      const auto places = static_cast<std::uint64_t>(
          std::nearbyint(std::ldexp(static_cast<double>(size), kMantissa - exponent)));
      magnitude = exponent + kBias > (1 << kExponent)
                      ? std::numeric_limits<unsigned>::max() / 2
                      : (static_cast<unsigned>(exponent + kBias - 1) << kMantissa) +
                            static_cast<unsigned>(places);
    }
    if (magnitude > kLargest) magnitude = kSaturates ? kLargest : kFinite ? kNan : kInfinity;
    return static_cast<Bits>(sign | magnitude);
  }
};

using Float16 = SmallFloat<std::uint16_t, 5, 10, false, false>;
using Bfloat16 = SmallFloat<std::uint16_t, 8, 7, false, false>;
using Float8e4m3 = SmallFloat<std::uint8_t, 4, 3, true, true>;
using Float8e5m2 = SmallFloat<std::uint8_t, 5, 2, false, true>;

}  // namespace moeccl
