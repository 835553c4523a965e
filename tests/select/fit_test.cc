// Fits find again what the data was made of.
#include "src/cost/fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "src/cost/least_squares.h"
#include "src/error.h"

namespace moeccl {
namespace {

// Sizes that ascend by `factor`, and what `seconds` says of them, off by a relative error of `noise`.
template <typename Seconds>
std::vector<Point> samples(int count, double factor, double noise, unsigned seed, Seconds seconds) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> error(0, noise);
  std::vector<Point> points;
  double x = 64;
  for (int i = 0; i < count; ++i, x *= factor)
    points.push_back({x, seconds(x) * std::exp(noise > 0 ? error(generator) : 0), noise});
  return points;
}

TEST(FitLine, FindsAlphaAndBeta) {
  for (double alpha : {1e-6, 1e-4})
    for (double beta : {1e-11, 1e-9, 1e-7}) {
      const auto time = [&](double x) { return alpha + beta * x; };
      const Fit exact = fitLine(samples(20, 2, 0, 1, time));
      ASSERT_EQ(exact.segments.size(), 1u);
      EXPECT_NEAR(exact.segments[0].alpha / alpha, 1, 1e-9);
      EXPECT_NEAR(exact.segments[0].beta / beta, 1, 1e-9);
      EXPECT_NEAR(exact.agreement.r2, 1, 1e-12);
      const Fit noisy = fitLine(samples(24, 2, 0.03, 1, time));
      ASSERT_EQ(noisy.segments.size(), 1u);
      for (double x : {64.0, 1e3, 1e6, 1e9}) EXPECT_NEAR(noisy.at(x) / time(x), 1, 0.1);
    }
}

}  // namespace
}  // namespace moeccl
