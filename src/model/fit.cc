// Fits sums of features to measured times by least squares of relative errors; a line has two.
// Coefficients are never negative, and samples that spread less count more.
#include "src/model/fit.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "src/base/error.h"
#include "src/base/text.h"
#include "src/model/least_squares.h"

namespace moeccl {
namespace {

// Relative errors that samples have besides their spread, since no model is exact.
constexpr double kModelError = 0.02;

void require(bool holds, std::size_t index, const char* what, double value, const char* right) {
  if (!holds)
    throw Error(moecclInvalidArgument,
                stringf("sample %zu: %s is %g; it must be %s", index, what, value, right));
}

void check(std::size_t index, double seconds, double spread) {
  require(seconds >= kMinSeconds && seconds <= kMaxSeconds, index, "seconds", seconds,
          "between 1e-12 and 1e12");
  require(spread >= 0 && spread <= kMaxSpread, index, "spread", spread, "between 0 and 1e6");
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

using Points = std::span<const FeaturePoint>;

// The median of those that are known; 0: none is.
double typicalSpread(Points points) {
  std::vector<double> known;
  for (const FeaturePoint& point : points)
    if (point.spread > 0) known.push_back(point.spread);
  return known.empty() ? 0 : median(std::move(known));
}

// The weight of each sample's squared relative error, 1 on average.
std::vector<double> weightsOf(Points points) {
  const double typical = typicalSpread(points);
  std::vector<double> weights;
  for (const FeaturePoint& point : points) {
    const double spread = point.spread > 0 ? point.spread : typical;
    weights.push_back(1 / (kModelError * kModelError + spread * spread));
  }
  const double mean =
      std::accumulate(weights.begin(), weights.end(), 0.0) / static_cast<double>(weights.size());
  for (double& weight : weights) weight /= mean;
  return weights;
}

// Least squares of relative errors: rows divided by what was measured, so that the target is 1.
// `features`: how many of each point's.
std::vector<double> solve(Points points, std::span<const double> weights, std::size_t features) {
  std::vector<std::vector<double>> columns(features);
  std::vector<double> target;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const double weight = std::sqrt(weights[i]);
    for (std::size_t f = 0; f < features; ++f)
      columns[f].push_back(weight * points[i].features[f] / points[i].seconds);
    target.push_back(weight);
  }
  return nonNegativeLeastSquares(columns, target);
}

template <typename Predict>
double squaredError(Points points, std::span<const double> weights, Predict predict) {
  double sum = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const double error = predict(points[i]) / points[i].seconds - 1;
    sum += weights[i] * error * error;
  }
  return sum;
}

FitAgreement agreementOf(Points points, std::span<const double> weights, const FeatureFit& fit) {
  const auto predict = [&](const FeaturePoint& point) { return fit.at(point.features); };
  FitAgreement agreement;
  std::vector<double> errors;
  for (const FeaturePoint& point : points)
    errors.push_back(std::abs(predict(point) / point.seconds - 1));
  agreement.worstError = std::ranges::max(errors);
  agreement.medianError = median(std::move(errors));
  std::vector<FeaturePoint> ones(points.begin(), points.end());
  for (FeaturePoint& point : ones) point.features = {1};
  const double constant = solve(ones, weights, 1)[0];
  const double total = squaredError(points, weights, [&](const FeaturePoint&) { return constant; });
  const double left = squaredError(points, weights, predict);
  // Samples that are all the same, but for rounding, leave nothing to explain.
  agreement.r2 = total <= 1e-20 * static_cast<double>(points.size()) ? 1 : 1 - left / total;
  return agreement;
}

// Points that have been checked.
FeatureFit fitted(Points points) {
  const std::vector<double> weights = weightsOf(points);
  FeatureFit fit;
  fit.coefficients = solve(points, weights, points[0].features.size());
  fit.agreement = agreementOf(points, weights, fit);
  return fit;
}

}  // namespace

double FeatureFit::at(std::span<const double> features) const {
  return std::inner_product(coefficients.begin(), coefficients.end(), features.begin(), 0.0);
}

Fit fitLine(std::span<const Point> points) {
  if (points.empty()) throw Error(moecclInvalidArgument, "there are no samples to fit a line to");
  for (std::size_t i = 0; i < points.size(); ++i) {
    require(points[i].x >= 0 && points[i].x <= kMaxSize, i, "the size", points[i].x,
            "between 0 and 1e19");
    check(i, points[i].seconds, points[i].spread);
  }
  std::vector<Point> sorted(points.begin(), points.end());
  std::ranges::stable_sort(sorted, {}, &Point::x);
  const bool oneSize = sorted.front().x == sorted.back().x;
  std::vector<FeaturePoint> samples;
  for (const auto& [x, seconds, spread] : sorted)
    samples.push_back({oneSize ? std::vector{1.0} : std::vector{1.0, x}, seconds, spread});
  FeatureFit fit = fitted(samples);
  fit.coefficients.resize(2);
  return {{fit.coefficients[0], fit.coefficients[1]}, fit.agreement};
}

FeatureFit fitFeatures(std::span<const FeaturePoint> points) {
  if (points.empty()) throw Error(moecclInvalidArgument, "there are no samples to fit features to");
  const std::size_t count = points[0].features.size();
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (points[i].features.size() != count)
      throw Error(moecclInvalidArgument, stringf("sample %zu has %zu features, the first has %zu",
                                                 i, points[i].features.size(), count));
    for (double feature : points[i].features)
      require(feature >= 0 && feature <= kMaxFeature, i, "a feature", feature,
              "between 0 and 1e100");
    check(i, points[i].seconds, points[i].spread);
  }
  return fitted(points);
}

}  // namespace moeccl
