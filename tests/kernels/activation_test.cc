// The activations of experts, against erf in double over all floats.
#include "kernels/activation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <vector>

namespace moeccl {
namespace {

double exactGelu(double x) {
  return std::isinf(x) ? std::max(x, 0.0) : x * std::erfc(-x / std::numbers::sqrt2) / 2;
}

double exactSlope(double x) {
  if (std::isinf(x)) return x > 0;
  constexpr double kPeak = std::numbers::inv_sqrtpi / std::numbers::sqrt2;
  return std::erfc(-x / std::numbers::sqrt2) / 2 + x * kPeak * std::exp(-x * x / 2);
}

template <typename Real>
struct Results {
  std::vector<Real> forward, backward, slopes;
};

template <typename Real>
Results<Real> resultsOf(Activation activation, const std::vector<Real>& at) {
  const auto count = static_cast<std::int64_t>(at.size());
  Results<Real> results{at, at, std::vector<Real>(at.size(), 1)};
  activate<Real>(activation, nullptr, 1, count, results.forward.data());
  activateBackward<Real>(activation, nullptr, 1, count, results.backward.data(),
                         results.slopes.data());
  return results;
}

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// Every so many of all floats, of every exponent and both signs, infinities and NaNs among them.
std::vector<float> allOver() {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> values{0.0f, -0.0f, kInfinity, -kInfinity, 13.0f, -13.0f};
  for (std::uint64_t bits = 0; bits < 1ull << 32; bits += 4999)
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  return values;
}

TEST(Activation, GeluOfAnyFloatIsWithinItsBounds) {
  const std::vector<float> at = allOver();
  const Results<float> results = resultsOf(Activation::gelu, at);
  for (std::size_t i = 0; i < at.size(); ++i) {
    const double x = at[i], value = exactGelu(x), slope = exactSlope(x);
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(results.forward[i]));
      ASSERT_TRUE(std::isnan(results.backward[i]));
      ASSERT_TRUE(std::isnan(results.slopes[i]));
    } else if (std::isinf(value)) {
      ASSERT_EQ(results.forward[i], value);
      ASSERT_EQ(results.backward[i], value);
      ASSERT_EQ(results.slopes[i], slope);
    } else {
      const double least = x < -13 ? 1e-35 : std::numeric_limits<float>::denorm_min();
      const double tolerance = 0x1p-20 * std::abs(value) + least;
      ASSERT_NEAR(results.forward[i], value, tolerance) << x;
      ASSERT_NEAR(results.backward[i], value, tolerance) << x;
      ASSERT_NEAR(results.slopes[i], slope, x < -13 ? 1e-35 : 0x1p-21) << x;
    }
  }
}

TEST(Activation, GeluOfDoublesIsExactUpToRounding) {
  std::vector<double> at;
  for (double x = -40; x < 40; x += 0.00313) at.push_back(x);
  const Results<double> results = resultsOf(Activation::gelu, at);
  for (std::size_t i = 0; i < at.size(); ++i) {
    const double value = exactGelu(at[i]);
    const double tolerance = 1e-13 * std::abs(value) + 1e-290;
    ASSERT_NEAR(results.forward[i], value, tolerance) << at[i];
    ASSERT_NEAR(results.backward[i], value, tolerance) << at[i];
    ASSERT_NEAR(results.slopes[i], exactSlope(at[i]), 1e-15) << at[i];
  }
}

TEST(Activation, ReluOfAnyFloat) {
  const std::vector<float> at = allOver();
  const Results<float> results = resultsOf(Activation::relu, at);
  for (std::size_t i = 0; i < at.size(); ++i) {
    const float value = at[i] < 0 ? 0 : at[i];
    ASSERT_TRUE(same(results.forward[i], value)) << at[i];
    ASSERT_TRUE(same(results.backward[i], value)) << at[i];
    ASSERT_EQ(results.slopes[i], at[i] <= 0 ? 0 : 1) << at[i];
  }
}

double exactSilu(double x) { return std::isinf(x) ? std::max(x, 0.0) : x / (1 + std::exp(-x)); }
double exactSiluSlope(double x) {
  if (std::isinf(x)) return x > 0;
  const double share = 1 / (1 + std::exp(-x));
  return share + x * share * (1 / (1 + std::exp(x)));
}

// Gated by `at`, all of them 1; the second gradients are those of what is gated.
template <typename Real>
Results<Real> gatedBy(const std::vector<Real>& at) {
  const auto count = static_cast<std::int64_t>(at.size());
  std::vector<Real> values = at;
  values.resize(2 * at.size(), 1);
  Results<Real> results{values, values, std::vector<Real>(values.size(), 1)};
  activate<Real>(Activation::swiglu, nullptr, 1, count, results.forward.data());
  activateBackward<Real>(Activation::swiglu, nullptr, 1, count, results.backward.data(),
                         results.slopes.data());
  return results;
}

template <typename Real>
void expectSilu(const std::vector<Real>& at, double relative, double ofSlope, double least) {
  const Results<Real> results = gatedBy(at);
  for (std::size_t i = 0; i < at.size(); ++i) {
    const double x = at[i], value = exactSilu(x);
    const double all[] = {results.forward[i], results.backward[i], results.slopes[at.size() + i]};
    for (const double each : all) {
      if (std::isnan(x))
        ASSERT_TRUE(std::isnan(each));
      else if (std::isinf(value))
        ASSERT_EQ(each, value);
      else
        ASSERT_NEAR(each, value, relative * std::abs(value) + least) << x;
    }
    if (!std::isnan(x)) ASSERT_NEAR(results.slopes[i], exactSiluSlope(x), ofSlope) << x;
  }
}

TEST(Activation, SiluOfAnyFloatIsWithinItsBounds) {
  expectSilu<float>(allOver(), 0x1p-20, 0x1p-21, 1e-35);
}

TEST(Activation, SiluOfDoublesIsExactUpToRounding) {
  std::vector<double> at;
  for (double x = -710; x < 710; x += 0.0313) at.push_back(x);
  expectSilu<double>(at, 1e-13, 1e-14, 1e-290);
}

// Rows of what gates and is gated, with a bias, against one element at a time.
TEST(Activation, SwigluOfRows) {
  for (std::int64_t width = 1; width <= 40; ++width) {
    constexpr std::int64_t kRows = 3;
    std::vector<double> bias, values, gradients;
    for (std::int64_t i = 0; i < 2 * width; ++i) bias.push_back(static_cast<double>(i) / 8 - 2);
    for (std::int64_t i = 0; i < kRows * 2 * width; ++i)
      values.push_back(static_cast<double>(i % 29) / 4 - 3);
    for (std::int64_t i = 0; i < kRows * width; ++i)
      gradients.push_back(static_cast<double>(i % 5) - 2);
    const std::vector<double> given = gradients;
    gradients.resize(values.size() + 1, 77);
    std::vector<double> forward = values, backward = values;
    forward.push_back(77);
    backward.push_back(77);
    activate(Activation::swiglu, bias.data(), kRows, width, forward.data());
    activateBackward(Activation::swiglu, bias.data(), kRows, width, backward.data(),
                     gradients.data());
    for (std::int64_t row = 0; row < kRows; ++row)
      for (std::int64_t i = 0; i < width; ++i) {
        const std::int64_t at = 2 * row * width + i, to = row * width + i;
        const double gate = values[at] + bias[i], up = values[at + width] + bias[i + width];
        ASSERT_NEAR(forward[to], exactSilu(gate) * up, 1e-12) << width;
        ASSERT_NEAR(backward[to], exactSilu(gate) * up, 1e-12) << width;
        ASSERT_NEAR(gradients[at], given[to] * up * exactSiluSlope(gate), 1e-12) << width;
        ASSERT_NEAR(gradients[at + width], given[to] * exactSilu(gate), 1e-12) << width;
      }
    for (const std::vector<double>* all : {&forward, &backward, &gradients})
      EXPECT_EQ(all->back(), 77);
  }
}

// Rows of every width that vectors may leave a rest of; biases of one row for all; and gradients
// that count.
template <typename Real>
void expectRowsAreAlike(Activation activation) {
  constexpr std::int64_t kRows = 3;
  for (std::int64_t width = 0; width <= 40; ++width) {
    std::vector<Real> bias, values, sums;
    for (std::int64_t i = 0; i < width; ++i) bias.push_back(static_cast<Real>(i) / 8 - 2);
    for (std::int64_t i = 0; i < kRows * width; ++i) {
      values.push_back(static_cast<Real>(i % 29) / 4 - 3);
      sums.push_back(values[i] + bias[i % width]);
    }
    const Results<Real> expected = resultsOf(activation, sums);
    std::vector<Real> forward = values, backward = values, gradients(values.size(), 2);
    forward.push_back(77);
    gradients.push_back(77);
    activate<Real>(activation, bias.data(), kRows, width, forward.data());
    activateBackward<Real>(activation, bias.data(), kRows, width, backward.data(),
                           gradients.data());
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(forward[i], expected.forward[i], 1e-6) << width;
      ASSERT_NEAR(backward[i], expected.forward[i], 1e-6) << width;
      ASSERT_NEAR(gradients[i], 2 * expected.slopes[i], 1e-6) << width;
    }
    EXPECT_EQ(forward.back(), 77);
    EXPECT_EQ(gradients.back(), 77);
  }
}

TEST(Activation, RowsAndBiases) {
  for (Activation activation : {Activation::gelu, Activation::relu}) {
    expectRowsAreAlike<float>(activation);
    expectRowsAreAlike<double>(activation);
  }
}

}  // namespace
}  // namespace moeccl
