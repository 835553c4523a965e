// The activations of experts with their slopes, of one float: what each thread of a GPU computes.
#pragma once

#include <cmath>
#include <numbers>

#include "kernels/device.h"

namespace moeccl {

struct Gelu {
  static constexpr float kHalfSqrt = static_cast<float>(1 / std::numbers::sqrt2);
  static constexpr float kPeak = static_cast<float>(std::numbers::inv_sqrtpi / std::numbers::sqrt2);

  MOECCL_DEVICE static float of(float x) { return 0.5f * x * (1.0f + std::erf(x * kHalfSqrt)); }
  MOECCL_DEVICE static float slope(float x) {
    return 0.5f * (1.0f + std::erf(x * kHalfSqrt)) + x * kPeak * std::exp(-0.5f * x * x);
  }
};

struct Relu {
  // Keeps NaN, unlike std::max.
  MOECCL_DEVICE static float of(float x) { return x < 0 ? 0.0f : x; }
  MOECCL_DEVICE static float slope(float x) { return x <= 0 ? 0.0f : 1.0f; }
};

struct Identity {
  MOECCL_DEVICE static float of(float x) { return x; }
};

}  // namespace moeccl
