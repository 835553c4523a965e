// Computes GELU, ReLU and SwiGLU and their slopes on the host, in loops that become vector
// instructions. In float32 exponentials and the normal distribution are computed by fitted
// polynomials.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

#include "kernels/activation.h"
#include "kernels/wide.h"

namespace moeccl {
namespace {

static_assert(std::numeric_limits<float>::is_iec559);

// The standard normal distribution at -a.
template <typename Real>
struct Normal {
  Real below;    // the probability of what is below
  Real density;  // exp(-a a / 2) / sqrt(2 pi)
};

// Beyond this `a` both are taken to be what they are here: soon they would be too small for normal
// numbers.
template <typename Real>
constexpr Real kEnd = 13;
template <>
constexpr double kEnd<double> = 37;

// a: 0 to kEnd, or NaN.
[[gnu::always_inline]] inline Normal<double> normalAt(double a) {
  constexpr double kPeak = std::numbers::inv_sqrtpi / std::numbers::sqrt2;
  return {0.5 * std::erfc(a / std::numbers::sqrt2), kPeak * std::exp(-0.5 * a * a)};
}

// exp(high + rest) for high from -87 to 0 and a small rest: the exponent is n ln 2 + r with |r| <=
// ln 2 / 2.
[[gnu::always_inline]] inline float decay(float high, float rest) {
  // Adding it rounds to a whole number, which is in the lowest bits then.
  constexpr float kRounder = 0x1.8p23f;
  const float rounded = high * static_cast<float>(std::numbers::log2e) + kRounder;
  const float n = rounded - kRounder;
  constexpr float kLn2High = 0x1.62e4p-1f;  // n kLn2High is exact
  constexpr float kLn2Low = static_cast<float>(std::numbers::ln2 - kLn2High);
  const float r = high - n * kLn2High - n * kLn2Low + rest;
  // Fitted to (exp(r) - 1 - r) / r^2: exp(r) is within 2^-28 of its value.
  float sum = 0.0013811662793159485f;
  sum = sum * r + 0.008370134979486465f;
  sum = sum * r + 0.04166852682828903f;
  sum = sum * r + 0.16666509211063385f;
  sum = sum * r + 0.4999999403953552f;
  sum = sum * (r * r) + r + 1.0f;
  return sum * std::bit_cast<float>((std::bit_cast<std::uint32_t>(rounded) << 23) + (127u << 23));
}

// exp(-a a / 2) for a from 0 to 13.
[[gnu::always_inline]] inline float bell(float a) {
  // Where the exponent is near -84 it must be known to 1e-7: the square of `high`, of 12 bits, is
  // exact.
  const float high = std::bit_cast<float>(std::bit_cast<std::uint32_t>(a) & 0xfffff000u);
  return decay(-0.5f * high * high, -0.5f * (a - high) * (a + high));
}

[[gnu::always_inline]] inline Normal<float> normalAt(float a) {
  // Fitted to `below` / exp(-a a / 2), which is smooth: within 2^-27 of its value from 0 to 13.
  const float t = (a - 3.0f) / (a + 3.0f);
  float ratio = 5.415085979620926e-05f;
  ratio = ratio * t + 0.00011603737948462367f;
  ratio = ratio * t - 0.00033991134841926396f;
  ratio = ratio * t - 0.0009841828141361475f;
  ratio = ratio * t + 0.002904702676460147f;
  ratio = ratio * t + 0.006132183130830526f;
  ratio = ratio * t - 0.046213313937187195f;
  ratio = ratio * t + 0.12322501838207245f;
  ratio = ratio * t - 0.20640261471271515f;
  ratio = ratio * t + 0.12151394784450531f;
  constexpr float kPeak = static_cast<float>(std::numbers::inv_sqrtpi / std::numbers::sqrt2);
  const float height = bell(a);
  return {ratio * height, kPeak * height};
}

template <typename Real>
struct CurvePoint {
  Real value, slope;
};

// relu(x) - a below(a), with a = |x|: so nothing is lost where gelu is small. NaN stays NaN.
struct Gelu {
  template <typename Real>
  [[gnu::always_inline]] static CurvePoint<Real> at(Real x) {
    const Real a = std::fabs(x) > kEnd<Real> ? kEnd<Real> : std::fabs(x);
    const Normal<Real> normal = normalAt(a);
    const Real slope = normal.below - a * normal.density;
    return {(x > 0 ? x : 0) - a * normal.below, x > 0 ? 1 - slope : slope};
  }
};

struct Relu {
  template <typename Real>
  [[gnu::always_inline]] static CurvePoint<Real> at(Real x) {
    return {x < 0 ? 0 : x, x <= 0 ? Real{0} : Real{1}};
  }
};

// a: 0 to kLowest, or NaN.
template <typename Real>
constexpr Real kLowest = 87;
template <>
constexpr double kLowest<double> = 700;
[[gnu::always_inline]] inline float decayOf(float a) { return decay(-a, 0); }
[[gnu::always_inline]] inline double decayOf(double a) { return std::exp(-a); }

// x times its share, 1 / (1 + exp(-x)); what is left of 1 is found without a difference.
struct Silu {
  template <typename Real>
  [[gnu::always_inline]] static CurvePoint<Real> at(Real x) {
    const Real a = std::fabs(x) > kLowest<Real> ? kLowest<Real> : std::fabs(x);
    const Real small = decayOf(a), whole = 1 / (1 + small);
    const Real share = x > 0 ? whole : small * whole, left = x > 0 ? small * whole : whole;
    const Real value = (x > 0 ? x : -a) * share;
    return {value, share + (x > 0 ? a : -a) * share * left};
  }
};

template <typename Real>
[[gnu::always_inline]] inline void addBias(const Real* bias, std::int64_t width, Real* values) {
  for (std::int64_t i = 0; i < width && bias != nullptr; ++i) values[i] += bias[i];
}

template <typename Function>
struct Forward {
  template <typename Real>
  [[gnu::always_inline]] static void run(const Real* bias, std::int64_t rows, std::int64_t width,
                                         Real* values) {
    for (std::int64_t row = 0; row < rows; ++row, values += width) {
      addBias(bias, width, values);
      for (std::int64_t i = 0; i < width; ++i) values[i] = Function::at(values[i]).value;
    }
  }
};

template <typename Function>
struct Backward {
  template <typename Real>
  [[gnu::always_inline]] static void run(const Real* bias, std::int64_t rows, std::int64_t width,
                                         Real* values, Real* gradients) {
    for (std::int64_t row = 0; row < rows; ++row, values += width, gradients += width) {
      addBias(bias, width, values);
      for (std::int64_t i = 0; i < width; ++i) {
        const CurvePoint<Real> point = Function::at(values[i]);
        values[i] = point.value;
        gradients[i] *= point.slope;
      }
    }
  }
};

struct GatedForward {
  template <typename Real>
  [[gnu::always_inline]] static void run(const Real* bias, std::int64_t rows, std::int64_t width,
                                         Real* values) {
    for (std::int64_t row = 0; row < rows; ++row) {
      Real* const from = values + 2 * row * width;
      addBias(bias, 2 * width, from);
      for (std::int64_t i = 0; i < width; ++i)
        values[row * width + i] = Silu::at(from[i]).value * from[width + i];
    }
  }
};

// The last row first: gradients of values take twice the room.
struct GatedBackward {
  template <typename Real>
  [[gnu::always_inline]] static void run(const Real* bias, std::int64_t rows, std::int64_t width,
                                         Real* values, Real* gradients) {
    for (std::int64_t row = rows; row-- > 0;) {
      Real* const its = values + 2 * row * width;
      addBias(bias, 2 * width, its);
      Real* const to = gradients + 2 * row * width;
      for (std::int64_t i = 0; i < width; ++i) {
        const CurvePoint<Real> point = Silu::at(its[i]);
        const Real gradient = gradients[row * width + i];
        to[i] = gradient * its[width + i] * point.slope;
        to[width + i] = gradient * point.value;
      }
    }
    GatedForward::run<Real>(nullptr, rows, width, values);
  }
};

}  // namespace

template <typename Real>
void activate(Activation activation, const Real* bias, std::int64_t rows, std::int64_t width,
              Real* values) {
  if (activation == Activation::gelu)
    runWide<Forward<Gelu>>(bias, rows, width, values);
  else if (activation == Activation::swiglu)
    runWide<GatedForward>(bias, rows, width, values);
  else
    runWide<Forward<Relu>>(bias, rows, width, values);
}

template <typename Real>
void activateBackward(Activation activation, const Real* bias, std::int64_t rows,
                      std::int64_t width, Real* values, Real* gradients) {
  if (activation == Activation::gelu)
    runWide<Backward<Gelu>>(bias, rows, width, values, gradients);
  else if (activation == Activation::swiglu)
    runWide<GatedBackward>(bias, rows, width, values, gradients);
  else
    runWide<Backward<Relu>>(bias, rows, width, values, gradients);
}

template void activate(Activation, const float*, std::int64_t, std::int64_t, float*);
template void activate(Activation, const double*, std::int64_t, std::int64_t, double*);
template void activateBackward(Activation, const float*, std::int64_t, std::int64_t, float*,
                               float*);
template void activateBackward(Activation, const double*, std::int64_t, std::int64_t, double*,
                               double*);

}  // namespace moeccl
