// Random numbers of both types of floats, and how exact results of them are.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <vector>

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

}  // namespace moeccl::test
