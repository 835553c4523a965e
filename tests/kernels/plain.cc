// One loop over elements for each kernel.
#include "tests/kernels/plain.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

namespace moeccl {
namespace {

template <typename T>
T combine(moecclRedOp_t op, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (op == moecclSum) return a + b;
    if (op == moecclProd) return a * b;
    if (std::isnan(a)) return a;
    if (std::isnan(b)) return b;
  } else {
    // Through the widest unsigned type, which wraps and whose lower bits are right for all others.
    const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
    if (op == moecclSum) return static_cast<T>(x + y);
    if (op == moecclProd) return static_cast<T>(x * y);
    if (op == moecclBitAnd) return static_cast<T>(x & y);
    if (op == moecclBitOr) return static_cast<T>(x | y);
    if (op == moecclBitXor) return static_cast<T>(x ^ y);
  }
  if (op == moecclMax) return a > b ? a : b;
  return a < b ? a : b;
}

template <typename T, typename Decode, typename Encode>
void reduceElements(moecclRedOp_t op, std::byte* dst, const std::byte* const* sources,
                    std::size_t stride, std::size_t count, std::size_t bytes, Decode decode,
                    Encode encode) {
  for (std::size_t at = 0; at < bytes; at += sizeof(T)) {
    const auto element = [&](std::size_t term) {
      T value;
      std::memcpy(&value, sources[term * stride] + at, sizeof(T));
      return decode(value);
    };
    auto result = element(0);
    for (std::size_t term = 1; term < count; ++term) result = combine(op, result, element(term));
    const auto stored = static_cast<T>(encode(result));
    std::memcpy(dst + at, &stored, sizeof(T));
  }
}

}  // namespace

const NarrowFormat* narrowFormat(moecclDataType_t datatype) {
  static constexpr NarrowFormat kFloat16{5, 10, false, false}, kBfloat16{8, 7, false, false},
      kFloat8e4m3{4, 3, true, true}, kFloat8e5m2{5, 2, false, true};
  switch (datatype) {
    case moecclFloat16:
      return &kFloat16;
    case moecclBfloat16:
      return &kBfloat16;
    case moecclFloat8e4m3:
      return &kFloat8e4m3;
    case moecclFloat8e5m2:
      return &kFloat8e5m2;
    default:
      return nullptr;
  }
}

float plainDecode(const NarrowFormat& format, unsigned bits) {
  const unsigned exponents = (1u << format.exponent) - 1, mantissas = (1u << format.mantissa) - 1;
  const bool negative = bits >> (format.exponent + format.mantissa) != 0;
  const unsigned exponent = bits >> format.mantissa & exponents, mantissa = bits & mantissas;
  const int bias = (1 << (format.exponent - 1)) - 1;
  float size;
  if (exponent == exponents && mantissa == (format.finite ? mantissas : std::max(mantissa, 1u)))
    return std::numeric_limits<float>::quiet_NaN();
  if (exponent == exponents && !format.finite)
    size = std::numeric_limits<float>::infinity();
  else if (exponent == 0)
    size = std::ldexp(static_cast<float>(mantissa), 1 - bias - format.mantissa);
  else
    size = std::ldexp(static_cast<float>(mantissa + mantissas + 1),
                      static_cast<int>(exponent) - bias - format.mantissa);
  return negative ? -size : size;
}

unsigned plainEncode(const NarrowFormat& format, float value) {
  const unsigned exponents = (1u << format.exponent) - 1, mantissas = (1u << format.mantissa) - 1;
  const unsigned sign = std::signbit(value) ? 1u << (format.exponent + format.mantissa) : 0;
  const unsigned infinity = exponents << format.mantissa, all = infinity | mantissas;
  const unsigned nan = format.finite ? all : infinity | (mantissas + 1) / 2;
  const unsigned tooLarge = format.saturates ? (format.finite ? all : infinity) - 1
                            : format.finite  ? nan
                                             : infinity;
  if (std::isnan(value)) return sign | nan;
  const float size = std::fabs(value);
  if (size == 0) return sign;
  if (std::isinf(size)) return sign | tooLarge;
  // The last place of the result, then how many of them.
  const int bias = (1 << (format.exponent - 1)) - 1;
  const int exponent = std::max(std::ilogb(size), 1 - bias);
  const double places =
      std::nearbyint(std::ldexp(static_cast<double>(size), format.mantissa - exponent));
  // A carry runs into the exponent by itself.
  const double magnitude = std::ldexp(exponent + bias - 1, format.mantissa) + places;
  return sign | static_cast<unsigned>(std::min<double>(magnitude, tooLarge));
}

void plainReduce(moecclRedOp_t op, moecclDataType_t datatype, std::byte* dst,
                 const std::byte* const* sources, std::size_t stride, std::size_t count,
                 std::size_t bytes) {
  const auto as = [&]<typename T>(T) {
    const auto same = [](T value) { return value; };
    reduceElements<T>(op, dst, sources, stride, count, bytes, same, same);
  };
  const auto asNarrow = [&]<typename T>(T) {
    const NarrowFormat format = *narrowFormat(datatype);
    reduceElements<T>(
        op, dst, sources, stride, count, bytes, [&](T bits) { return plainDecode(format, bits); },
        [&](float value) { return plainEncode(format, value); });
  };
  switch (datatype) {
    case moecclInt8:
      return as(std::int8_t{});
    case moecclUint8:
      return as(std::uint8_t{});
    case moecclInt32:
      return as(std::int32_t{});
    case moecclUint32:
      return as(std::uint32_t{});
    case moecclInt64:
      return as(std::int64_t{});
    case moecclUint64:
      return as(std::uint64_t{});
    case moecclInt16:
      return as(std::int16_t{});
    case moecclUint16:
      return as(std::uint16_t{});
    case moecclFloat32:
      return as(float{});
    case moecclFloat64:
      return as(double{});
    case moecclFloat16:
    case moecclBfloat16:
      return asNarrow(std::uint16_t{});
    case moecclFloat8e4m3:
    case moecclFloat8e5m2:
      return asNarrow(std::uint8_t{});
    default:
      return;
  }
}

void plainCopyBlocks(std::byte* dst, std::ptrdiff_t dstStride, const std::byte* src,
                     std::ptrdiff_t srcStride, std::size_t bytes, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i)
    for (std::size_t b = 0; b < bytes; ++b) dst[i * dstStride + b] = src[i * srcStride + b];
}

}  // namespace moeccl
