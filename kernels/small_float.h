// Conversions between float32 and the narrow floating-point types, without branches, so that loops
// over them become vector instructions.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/device.h"

namespace moeccl {

static_assert(std::numeric_limits<float>::is_iec559);

// A narrow float: sign, kExponent exponent bits, kMantissa mantissa bits. kFinite: the "fn" kind
// (no infinity, one NaN of all ones). Encoding rounds to nearest, ties to even; what is too large
// becomes infinity, or the largest finite value where kSaturates. Decoding makes all NaNs one.
template <typename BitsType, int kExponent, int kMantissa, bool kFinite, bool kSaturates>
struct SmallFloat {
  using Bits = BitsType;
  // An integer of float32's size. It is signed: comparing is subtracting and spreading the sign,
  // see less.
  using Word = std::int32_t;
  static constexpr int kBias = (1 << (kExponent - 1)) - 1;
  static constexpr Word kMagnitude = (1 << (kExponent + kMantissa)) - 1;
  static constexpr Word kInfinity = ((1 << kExponent) - 1) << kMantissa;
  static constexpr Word kNan = kFinite ? kMagnitude : kInfinity | 1 << (kMantissa - 1);
  static constexpr Word kLargest = kFinite ? kMagnitude - 1 : kInfinity - 1;
  static constexpr Word kTooLarge = kLargest + (kSaturates ? 0 : 1);

  MOECCL_DEVICE static float decode(Bits bits) {
#ifdef __CUDA_ARCH__  // the GPU's own conversions give the same numbers; NaN may have other bits
    if constexpr (kExponent == 8) return asFloat(static_cast<Word>(bits) << kShift);
    if constexpr (sizeof(Bits) == 2) {
      float value;
      asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
      return value;
    }
#endif
    const Word magnitude = bits & kMagnitude;
    const Word wide = magnitude << kShift;
    Word result = wide + kRebias;
    if constexpr (kRebias != 0) {  // otherwise subnormals and infinity are float32's too
      // A subnormal lacks the leading 1 that the exponent implies: with the next exponent the two
      // differ by just the number meant.
      const Word leading = kRebias + kExponentUnit;
      const Word subnormal = asWord(asFloat(wide + leading) - asFloat(leading));
      result = select(less(magnitude, 1 << kMantissa), subnormal, result);
      if constexpr (!kFinite)
        result = select(less(kInfinity - 1, magnitude), kWideInfinity, result);
    }
    const Word sign = (bits & (kMagnitude + 1)) << (31 - kExponent - kMantissa);
    const Word nan = less(kFinite ? kMagnitude - 1 : kInfinity, magnitude);
    return asFloat(select(nan, kWideNan, result | sign));
  }

  MOECCL_DEVICE static Bits encode(float value) {
#ifdef __CUDA_ARCH__
    Bits converted;
    if constexpr (sizeof(Bits) == 2 && kExponent == 5) {
      asm("cvt.rn.f16.f32 %0, %1;" : "=h"(converted) : "f"(value));
      return converted;
    }
#if __CUDA_ARCH__ >= 800  // before, GPUs know no bfloat16
    if constexpr (kExponent == 8) {
      asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(converted) : "f"(value));
      return converted;
    }
#endif
#endif
    const Word word = asWord(value);
    const Word size = word & ~kWideSign;
    // Half of the last place, less one where that place is even; a carry runs into the exponent by
    // itself.
    const std::uint32_t rounding = (1u << (kShift - 1)) - 1 + (size >> kShift & 1);
    const std::uint32_t rounded = static_cast<std::uint32_t>(size) + rounding;
    Word magnitude = static_cast<Word>(rounded >> kShift) - (kRebias >> kShift);
    if constexpr (kRebias != 0) {
      // Beside a number whose last place is that of the subnormals, addition rounds as needed.
      constexpr Word kBeside = kRebias + (1 + 23 - kMantissa) * kExponentUnit;
      const Word subnormal = asWord(asFloat(size) + asFloat(kBeside)) - kBeside;
      magnitude = select(less(size, kRebias + kExponentUnit), subnormal, magnitude);
    }
    magnitude = select(less(magnitude, kTooLarge), magnitude, kTooLarge);
    magnitude = select(less(kWideInfinity, size), kNan, magnitude);
    const Word sign = word >> (31 - kExponent - kMantissa) & (kMagnitude + 1);
    return static_cast<Bits>(sign | magnitude);
  }

 private:
  static constexpr int kShift = 23 - kMantissa;  // mantissa bits that float32 has more
  static constexpr Word kExponentUnit = 1 << 23;
  static constexpr Word kRebias = (127 - kBias) * kExponentUnit;
  static constexpr Word kWideSign = std::numeric_limits<Word>::min();
  static constexpr Word kWideInfinity = 0xff * kExponentUnit;
  static constexpr Word kWideNan = kWideInfinity | kExponentUnit / 2;

  MOECCL_DEVICE static float asFloat(Word word) { return std::bit_cast<float>(word); }
  MOECCL_DEVICE static Word asWord(float value) { return std::bit_cast<Word>(value); }

  // All ones if a < b, which must be less than 2^31 apart.
  MOECCL_DEVICE static Word less(Word a, Word b) { return (a - b) >> 31; }
  // Computes with both, where ?: would let compilers branch around what they think expensive.
  MOECCL_DEVICE static Word select(Word mask, Word yes, Word no) {
    return no ^ ((yes ^ no) & mask);
  }
};

using Float16 = SmallFloat<std::uint16_t, 5, 10, false, false>;
using Bfloat16 = SmallFloat<std::uint16_t, 8, 7, false, false>;
using Float8e4m3 = SmallFloat<std::uint8_t, 4, 3, true, true>;
using Float8e5m2 = SmallFloat<std::uint8_t, 5, 2, false, true>;

}  // namespace moeccl
