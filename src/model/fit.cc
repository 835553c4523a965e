// Fits lines, and sums of features, to measured times by least squares of relative errors.
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

// The median of those that are known; 0: none is.
template <typename Sample>
double typicalSpread(std::span<const Sample> samples) {
  std::vector<double> known;
  for (const Sample& sample : samples)
    if (sample.spread > 0) known.push_back(sample.spread);
  return known.empty() ? 0 : median(std::move(known));
}

// The weight of each sample's squared relative error, 1 on average.
template <typename Sample>
std::vector<double> weightsOf(std::span<const Sample> samples) {
  const double typical = typicalSpread(samples);
  std::vector<double> weights;
  for (const Sample& sample : samples) {
    const double spread = sample.spread > 0 ? sample.spread : typical;
    weights.push_back(1 / (kModelError * kModelError + spread * spread));
  }
  const double mean =
      std::accumulate(weights.begin(), weights.end(), 0.0) / static_cast<double>(weights.size());
  for (double& weight : weights) weight /= mean;
  return weights;
}

// Least squares of relative errors: rows divided by what was measured, so that the target is 1.
template <typename Sample, typename FeatureOf>
std::vector<double> solve(std::span<const Sample> samples, std::span<const double> weights,
                          std::size_t features, FeatureOf featureOf) {
  std::vector<std::vector<double>> columns(features);
  std::vector<double> target;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const double weight = std::sqrt(weights[i]);
    for (std::size_t f = 0; f < features; ++f)
      columns[f].push_back(weight * featureOf(samples[i], f) / samples[i].seconds);
    target.push_back(weight);
  }
  return nonNegativeLeastSquares(columns, target);
}

template <typename Sample, typename Predict>
double squaredError(std::span<const Sample> samples, std::span<const double> weights,
                    Predict predict) {
  double sum = 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const double error = predict(samples[i]) / samples[i].seconds - 1;
    sum += weights[i] * error * error;
  }
  return sum;
}

template <typename Sample, typename Predict>
FitAgreement agreementOf(std::span<const Sample> samples, std::span<const double> weights,
                         Predict predict) {
  FitAgreement agreement;
  std::vector<double> errors;
  for (const Sample& sample : samples)
    errors.push_back(std::abs(predict(sample) / sample.seconds - 1));
  agreement.worstError = std::ranges::max(errors);
  agreement.medianError = median(std::move(errors));
  const double constant =
      solve(samples, weights, 1, [](const Sample&, std::size_t) { return 1.0; })[0];
  const double total = squaredError(samples, weights, [&](const Sample&) { return constant; });
  const double left = squaredError(samples, weights, predict);
  // Samples that are all the same, but for rounding, leave nothing to explain.
  agreement.r2 = total <= 1e-20 * static_cast<double>(samples.size()) ? 1 : 1 - left / total;
  return agreement;
}

}  // namespace

Fit fitLine(std::span<const Point> points) {
  if (points.empty()) throw Error(moecclInvalidArgument, "there are no samples to fit a line to");
  for (std::size_t i = 0; i < points.size(); ++i) {
    require(points[i].x >= 0 && points[i].x <= kMaxSize, i, "the size", points[i].x,
            "between 0 and 1e19");
    check(i, points[i].seconds, points[i].spread);
  }
  std::vector<Point> sorted(points.begin(), points.end());
  std::ranges::stable_sort(sorted, {}, &Point::x);
  const std::span<const Point> samples = sorted;
  const std::vector<double> weights = weightsOf(samples);
  const bool oneSize = samples.front().x == samples.back().x;
  std::vector<double> line =
      solve(samples, weights, oneSize ? 1 : 2,
            [](const Point& point, std::size_t feature) { return feature == 0 ? 1.0 : point.x; });
  line.resize(2);
  Fit fit{{line[0], line[1]}, {}};
  fit.agreement =
      agreementOf(samples, weights, [&](const Point& point) { return fit.at(point.x); });
  return fit;
}

double FeatureFit::at(std::span<const double> features) const {
  return std::inner_product(coefficients.begin(), coefficients.end(), features.begin(), 0.0);
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
  const std::vector<double> weights = weightsOf(points);
  FeatureFit fit;
  fit.coefficients = solve(points, weights, count, [](const FeaturePoint& point, std::size_t f) {
    return point.features[f];
  });
  fit.agreement = agreementOf(points, weights,
                              [&](const FeaturePoint& point) { return fit.at(point.features); });
  return fit;
}

}  // namespace moeccl
