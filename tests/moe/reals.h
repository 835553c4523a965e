// Random numbers of both types of floats, how exact results of them are, and plain activations.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "kernels/activation.h"

namespace moeccl::test {

using Random = std::mt19937;
using Reals = testing::Types<float, double>;

// What rounding may do to a result of about 1.
template <typename Real>
constexpr double kRounding = 16 * std::numeric_limits<Real>::epsilon();

template <typename Real>
std::vector<Real> uniform(Random& random, std::int64_t count) {
  std::uniform_real_distribution<Real> value(-1, 1);
  std::vector<Real> values(count);
  for (Real& v : values) v = value(random);
  return values;
}

// x, and what it gates with swiglu.
inline double plainActivation(Activation activation, double x, double up) {
  if (activation == Activation::relu) return std::max(x, 0.0);
  if (activation == Activation::swiglu) return x / (1 + std::exp(-x)) * up;
  return x * (1 + std::erf(x / std::sqrt(2.0))) / 2;
}

}  // namespace moeccl::test
