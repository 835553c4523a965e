// Least squares for measured times: from samples to alpha and beta. Relative errors count, so that
// 20 % of a microsecond weigh as much as 20 % of a second; of samples that spread more, they count
// less.
#pragma once

#include <span>
#include <vector>

namespace moeccl {

// One measurement: `seconds` that something of size `x` took. `spread` is the relative width of its
// repetitions, (third - first quartile) / median; 0: unknown, which counts as the median of the
// known.
struct Point {
  double x = 0;
  double seconds = 0;
  double spread = 0;

  bool operator==(const Point&) const = default;
};

// seconds = alpha + beta x
struct Line {
  double alpha = 0;
  double beta = 0;

  double at(double x) const { return alpha + beta * x; }
  bool operator==(const Line&) const = default;
};

// How well a fit agrees with its samples. Errors are |predicted / measured - 1|. r2 is 1 - (squared
// error) / (that of the best constant), of relative errors, weighted as in the fit.
struct FitAgreement {
  double r2 = 0;
  double medianError = 0;
  double worstError = 0;

  bool operator==(const FitAgreement&) const = default;
};

// A median of some ten repetitions is off by this part of their spread.
inline constexpr double kErrorOfSpread = 0.3;

// What fits accept: anything beyond is no measurement, and would overflow.
inline constexpr double kMinSeconds = 1e-12, kMaxSeconds = 1e12;
inline constexpr double kMaxSize = 1e19;
inline constexpr double kMaxFeature = 1e100;
inline constexpr double kMaxSpread = 1e6;

struct Fit {
  Line line;
  FitAgreement agreement;

  double at(double x) const { return line.at(x); }
  bool operator==(const Fit&) const = default;
};

// alpha, beta >= 0. Samples of one size only give a constant: they tell no slope. Throws
// InvalidArgument for no samples, and for one that is out of the bounds above.
Fit fitLine(std::span<const Point> points);

// One measurement of what has many causes.
struct FeaturePoint {
  std::vector<double> features;
  double seconds = 0;
  double spread = 0;
};

// seconds = sum of coefficients[i] * features[i]
struct FeatureFit {
  std::vector<double> coefficients;
  FitAgreement agreement;

  // `features` has as many as there are coefficients.
  double at(std::span<const double> features) const;
  bool operator==(const FeatureFit&) const = default;
};

// All coefficients >= 0 (Lawson and Hanson's active sets). A feature that the samples cannot tell
// from others gets 0. Throws InvalidArgument for no samples, unequal numbers of features, and
// numbers out of bounds.
FeatureFit fitFeatures(std::span<const FeaturePoint> points);

}  // namespace moeccl
