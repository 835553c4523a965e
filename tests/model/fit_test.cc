// Fits find again what the data was made of.
#include "src/model/fit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "src/base/error.h"
#include "src/model/least_squares.h"

namespace moeccl {
namespace {

// Sizes that ascend by `factor`, and what `seconds` says of them, off by relative errors of about
// `noise`.
template <typename Seconds>
std::vector<Point> samples(int count, double factor, double noise, unsigned seed, Seconds seconds) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> error(0, 1);
  std::vector<Point> points;
  double x = 64;
  for (int i = 0; i < count; ++i, x *= factor)
    points.push_back({x, seconds(x) * std::exp(noise * error(generator)), noise});
  return points;
}

// The error's text; empty where there is none.
template <typename Call>
std::string errorOf(Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.result(), moecclInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(FitLine, FindsAlphaAndBeta) {
  for (double alpha : {1e-6, 1e-4})
    for (double beta : {1e-11, 1e-9, 1e-7}) {
      const auto time = [&](double x) { return alpha + beta * x; };
      const Fit exact = fitLine(samples(20, 2, 0, 1, time));
      EXPECT_NEAR(exact.line.alpha / alpha, 1, 1e-9);
      EXPECT_NEAR(exact.line.beta / beta, 1, 1e-9);
      EXPECT_NEAR(exact.agreement.r2, 1, 1e-12);
      EXPECT_LT(exact.agreement.worstError, 1e-9);
      const Fit noisy = fitLine(samples(24, 2, 0.03, 1, time));
      for (double x : {64.0, 1e3, 1e6, 1e9}) EXPECT_NEAR(noisy.at(x) / time(x), 1, 0.1);
      EXPECT_GT(noisy.agreement.medianError, 0.005);
      EXPECT_LT(noisy.agreement.worstError, 0.15);
    }
}

// The few large sizes would decide alone if absolute errors counted: an alpha of 10 us is nothing
// to 1 % of 100 ms.
TEST(FitLine, SmallSizesCount) {
  std::vector<Point> points = samples(22, 2, 0, 1, [](double x) { return 1e-5 + 1e-9 * x; });
  for (std::size_t i = 0; i < points.size(); ++i) points[i].seconds *= i % 2 ? 1.01 : 0.99;
  const Fit fit = fitLine(points);
  EXPECT_NEAR(fit.at(64) / 1e-5, 1, 0.02);
  EXPECT_NEAR(fit.line.beta / 1e-9, 1, 0.02);
  EXPECT_NEAR(fit.agreement.medianError, 0.01, 0.005);
}

TEST(FitLine, WhatSpreadsCountsLess) {
  std::vector<Point> points = samples(6, 4, 0, 1, [](double x) { return 1e-5 + 1e-9 * x; });
  points[2].seconds *= 2;
  const double misled = fitLine(points).at(64);
  for (Point& point : points) point.spread = 0.01;
  points[2].spread = 1;
  EXPECT_NEAR(fitLine(points).at(64) / 1.0064e-5, 1, 1e-3);
  EXPECT_GT(misled, 1.05e-5);
  // Unknown is as the others.
  for (Point& point : points) point.spread = 0.5;
  points[2].spread = 0;
  EXPECT_NEAR(fitLine(points).at(64) / misled, 1, 1e-9);
}

TEST(FitLine, NeverNegative) {
  // Falling, and rising faster than through the origin.
  const Fit falling = fitLine(samples(6, 2, 0, 1, [](double x) { return 1e-3 / x; }));
  EXPECT_EQ(falling.line.beta, 0);
  EXPECT_GT(falling.line.alpha, 0);
  const Fit steep = fitLine(samples(6, 2, 0, 1, [](double x) { return 1e-9 * (x - 60); }));
  EXPECT_EQ(steep.line.alpha, 0);
  EXPECT_GT(steep.line.beta, 0);
  for (const Fit& fit : {falling, steep})
    for (double x : {0.0, 1.0, 1e18}) EXPECT_GE(fit.at(x), 0);
}

TEST(FitLine, FewSamples) {
  EXPECT_EQ(errorOf([] { fitLine({}); }), "there are no samples to fit a line to");
  const std::vector<Point> two{{1000, 3e-6}, {2000, 5e-6}};
  const Fit one = fitLine(std::span(two).first(1));
  EXPECT_EQ(one.line, (Line{one.at(0), 0}));
  EXPECT_DOUBLE_EQ(one.at(1e6), 3e-6);
  EXPECT_EQ(one.agreement.r2, 1);
  const Fit line = fitLine(two);
  EXPECT_NEAR(line.line.alpha, 1e-6, 1e-18);
  EXPECT_NEAR(line.line.beta, 2e-9, 1e-21);
  // Of one size: a constant, between the least and the most.
  const Fit same = fitLine(std::vector<Point>(9, {1000, 3e-6}));
  EXPECT_DOUBLE_EQ(same.at(5), 3e-6);
  const Fit between = fitLine(std::vector<Point>{{8, 1e-6}, {8, 3e-6}});
  EXPECT_EQ(between.line.beta, 0);
  EXPECT_GT(between.at(8), 1e-6);
  EXPECT_LT(between.at(8), 3e-6);
  for (double x = 1; x < 1e9; x = 3 * x + 1) {
    const Fit some = fitLine(std::vector<Point>{{x, 1e-6}, {x, 1.1e-6}, {x, 1e-6 + 1e-12 * x}});
    ASSERT_EQ(some.line.beta, 0) << x;
    ASSERT_GT(some.line.alpha, 0.9e-6) << x;
  }
  // Empty messages only.
  EXPECT_DOUBLE_EQ(fitLine(std::vector<Point>{{0, 2e-6}}).at(100), 2e-6);
}

TEST(FitLine, OrderDoesNotMatter) {
  std::vector<Point> points = samples(16, 2, 0.05, 7, [](double x) { return 1e-5 + 1e-9 * x; });
  const Fit fit = fitLine(points);
  std::ranges::reverse(points);
  const Fit reversed = fitLine(points);
  EXPECT_EQ(reversed, fit);
}

TEST(FitLine, HugeAndTiny) {
  const Fit huge = fitLine(std::vector<Point>{{0, 1e-12}, {1e10, 1}, {1e19, 1e12}});
  EXPECT_TRUE(std::isfinite(huge.at(kMaxSize)));
  EXPECT_TRUE(std::isfinite(huge.agreement.r2));
  const Fit narrow =
      fitLine(std::vector<Point>{{1e9, 1}, {1e9 + 8, 1 + 1e-6}, {1e9 + 16, 1 + 2e-6}});
  EXPECT_NEAR(narrow.at(1e9 + 8), 1 + 1e-6, 1e-6);
}

TEST(FitLine, RefusesWhatIsNoMeasurement) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinite = std::numeric_limits<double>::infinity();
  const auto fitOf = [](Point point) {
    return errorOf([&] { fitLine(std::vector<Point>{{1, 1e-6}, point}); });
  };
  for (double x : {-1.0, nan, infinite, 1e20})
    EXPECT_NE(fitOf({x, 1}).find("sample 1: the size is"), std::string::npos) << x;
  for (double seconds : {0.0, -1.0, nan, infinite, 1e-13, 1e13})
    EXPECT_NE(fitOf({1, seconds}).find("sample 1: seconds is"), std::string::npos) << seconds;
  for (double spread : {-1.0, nan, infinite})
    EXPECT_NE(fitOf({1, 1, spread}).find("sample 1: spread is"), std::string::npos) << spread;
}

TEST(FitLine, IsStraightWhateverWasMeasured) {
  // Eager and rendezvous: from 32 KiB on 60 us more, and another slope.
  const auto jump = [](double x) { return x < 32768 ? 1e-5 + 2e-9 * x : 1.3e-4 + 0.8e-9 * x; };
  const Fit fit = fitLine(samples(20, 2, 0.02, 1, jump));
  for (double x : {64.0, 1e4, 1e8}) EXPECT_DOUBLE_EQ(fit.at(x), fit.line.alpha + fit.line.beta * x);
  EXPECT_GT(fit.line.beta, 0.5e-9);
  EXPECT_LT(fit.line.beta, 4e-9);
}

// The best of all sets of columns whose plain least squares are not negative: one of them is the
// solution.
std::vector<double> bruteForce(const std::vector<std::vector<double>>& columns,
                               const std::vector<double>& target, double& least) {
  const std::size_t count = columns.size(), rows = target.size();
  std::vector<double> best(count);
  least = std::numeric_limits<double>::infinity();
  for (std::size_t set = 0; set < std::size_t{1} << count; ++set) {
    // Normal equations by Gauss and Jordan.
    std::vector<std::size_t> in;
    for (std::size_t c = 0; c < count; ++c)
      if (set >> c & 1) in.push_back(c);
    const std::size_t n = in.size();
    std::vector<std::vector<double>> m(n, std::vector<double>(n + 1));
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t r = 0; r < rows; ++r) {
        for (std::size_t j = 0; j < n; ++j) m[i][j] += columns[in[i]][r] * columns[in[j]][r];
        m[i][n] += columns[in[i]][r] * target[r];
      }
    for (std::size_t i = 0; i < n; ++i) {
      const double pivot = m[i][i];
      for (double& value : m[i]) value /= pivot;
      for (std::size_t k = 0; k < n; ++k) {
        if (k == i) continue;
        const double factor = m[k][i];
        for (std::size_t j = 0; j <= n; ++j) m[k][j] -= factor * m[i][j];
      }
    }
    std::vector<double> x(count);
    for (std::size_t i = 0; i < n; ++i) x[in[i]] = m[i][n];
    if (std::ranges::any_of(x, [](double value) { return !(value >= 0); })) continue;
    double error = 0;
    for (std::size_t r = 0; r < rows; ++r) {
      double left = target[r];
      for (std::size_t c = 0; c < count; ++c) left -= x[c] * columns[c][r];
      error += left * left;
    }
    if (error < least) {
      least = error;
      best = x;
    }
  }
  return best;
}

TEST(NonNegativeLeastSquares, IsTheBestOfAllSets) {
  std::mt19937 generator(5);
  std::normal_distribution<double> normal(0, 1);
  int zeros = 0, others = 0;
  for (int round = 0; round < 3000; ++round) {
    const std::size_t count = 1 + generator() % 6, rows = count + generator() % 5;
    std::vector<std::vector<double>> columns(count, std::vector<double>(rows));
    std::vector<double> target(rows);
    for (auto& column : columns)
      for (double& value : column) value = normal(generator);
    for (double& value : target) value = normal(generator);
    const std::vector<double> x = nonNegativeLeastSquares(columns, target);
    double least = 0;
    const std::vector<double> best = bruteForce(columns, target, least);
    for (std::size_t c = 0; c < count; ++c) {
      ASSERT_NEAR(x[c], best[c], 1e-6 * (1 + best[c])) << round;
      ++(x[c] == 0 ? zeros : others);
    }
  }
  EXPECT_GT(zeros, 1000);
  EXPECT_GT(others, 1000);
}

TEST(NonNegativeLeastSquares, DependentAndEmptyColumns) {
  const std::vector<double> target{1, 2, 3};
  const std::vector<double> x =
      nonNegativeLeastSquares({{1, 2, 3}, {2, 4, 6}, {0, 0, 0}, {-1, -2, -3}}, target);
  EXPECT_NEAR(x[0] + 2 * x[1], 1, 1e-12);
  EXPECT_EQ(x[2], 0);
  EXPECT_EQ(x[3], 0);
  EXPECT_TRUE(nonNegativeLeastSquares({}, target).empty());
  EXPECT_EQ(nonNegativeLeastSquares({{1, 0, 0}}, {0, 0, 0}), std::vector<double>{0});
}

TEST(FitFeatures, FindsCoefficients) {
  std::mt19937 generator(9);
  std::uniform_real_distribution<double> uniform(0, 1);
  const std::vector<double> truth{2e-5, 3e-10, 0, 1e-9};
  std::vector<FeaturePoint> points;
  for (int i = 0; i < 40; ++i) {
    FeaturePoint point{{1, std::pow(10, 4 + 4 * uniform(generator)),
                        std::pow(10, 4 + 4 * uniform(generator)),
                        std::pow(10, 3 + 4 * uniform(generator))}};
    for (std::size_t f = 0; f < truth.size(); ++f) point.seconds += truth[f] * point.features[f];
    points.push_back(point);
  }
  const FeatureFit fit = fitFeatures(points);
  ASSERT_EQ(fit.coefficients.size(), truth.size());
  for (std::size_t f = 0; f < truth.size(); ++f)
    EXPECT_NEAR(fit.coefficients[f], truth[f], 1e-9 * truth[f] + 1e-19) << f;
  EXPECT_NEAR(fit.agreement.r2, 1, 1e-12);
  EXPECT_NEAR(fit.at(points[0].features) / points[0].seconds, 1, 1e-9);
  for (FeaturePoint& point : points) point.seconds *= 1 + 0.05 * (uniform(generator) - 0.5);
  const FeatureFit noisy = fitFeatures(points);
  for (std::size_t f : {0u, 1u, 3u}) EXPECT_NEAR(noisy.coefficients[f] / truth[f], 1, 0.1) << f;
  EXPECT_GE(noisy.coefficients[2], 0);
  EXPECT_LT(noisy.agreement.worstError, 0.1);
}

TEST(FitFeatures, RefusesWhatIsNoMeasurement) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(errorOf([] { fitFeatures({}); }), "there are no samples to fit features to");
  const auto fitOf = [](const FeaturePoint& point) {
    return errorOf([&] { fitFeatures(std::vector<FeaturePoint>{{{1, 2}, 1}, point}); });
  };
  EXPECT_EQ(fitOf({{1}, 1}), "sample 1 has 1 features, the first has 2");
  EXPECT_EQ(fitOf({{1, -2}, 1}), "sample 1: a feature is -2; it must be between 0 and 1e100");
  EXPECT_NE(fitOf({{1, nan}, 1}), "");
  EXPECT_NE(fitOf({{1, 1e101}, 1}), "");
  EXPECT_NE(fitOf({{1, 1}, 0}), "");
}

}  // namespace
}  // namespace moeccl
