// Elements of 16 bits: what is computed with them is computed in float32, and rounded where it is
// stored.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/small_float.h"
#include "moeccl/moeccl.h"

namespace moeccl {

// One in memory, of SmallFloat's format.
template <typename Format>
struct Narrow {
  static Narrow of(float value) { return {Format::encode(value)}; }

  typename Format::Bits bits;
};
using NarrowFloat16 = Narrow<Float16>;
using NarrowBfloat16 = Narrow<Bfloat16>;

// The type that elements of a type are computed in: float and double are in themselves.
template <typename Real>
struct WideOf {
  using Type = Real;
};
template <typename Format>
struct WideOf<Narrow<Format>> {
  using Type = float;
};
template <typename Real>
using Wide = typename WideOf<Real>::Type;
template <typename Real>
inline constexpr bool kIsNarrow = !std::is_same_v<Wide<Real>, Real>;

inline float widen(float value) { return value; }
inline double widen(double value) { return value; }
template <typename Format>
float widen(Narrow<Format> value) {
  return Format::decode(value.bits);
}
template <typename Real>
Real narrowed(Wide<Real> value) {
  if constexpr (std::is_floating_point_v<Real>)
    return value;
  else
    return Real::of(value);
}

template <typename Real>
void widen(const Real* from, std::int64_t count, Wide<Real>* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = widen(from[i]);
}
template <typename Real>
void narrow(const Wide<Real>* from, std::int64_t count, Real* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = narrowed<Real>(from[i]);
}
// to += from.
template <typename Real>
void addNarrowed(const Wide<Real>* from, std::int64_t count, Real* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = narrowed<Real>(widen(to[i]) + from[i]);
}

// The same on a stream of a GPU, whose addresses all are, for float32, float16 and bfloat16. They
// throw Error.
namespace cuda {

void widen(moecclDataType_t datatype, const void* from, std::int64_t count, float* to,
           void* stream);
void addNarrowed(moecclDataType_t datatype, const float* from, std::int64_t count, void* to,
                 void* stream);

}  // namespace cuda

}  // namespace moeccl
