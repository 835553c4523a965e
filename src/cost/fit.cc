#include "src/cost/fit.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <optional>

#include "src/cost/least_squares.h"
#include "src/error.h"
#include "src/text.h"

namespace moeccl {
namespace {

// Relative errors that samples have besides their spread, since no model is exact.
constexpr double kModelError = 0.02;
// Errors of a line below this need no second one.
constexpr double kGoodEnough = 0.01;
// What a knee must be worth. Since the best knee of many is taken, chance reaches 4 often, and 8
// once or twice in 100 straight lines of 8 to 80 samples; tests/select/fit_test.cc counts.
constexpr double kWorth = 10;
constexpr std::size_t kSamplesForKnee = 8, kSizesPerSegment = 3;
// Where the spreads of the samples are known they tell how exact the samples are, as well as so
// many more samples would, and less is enough.
constexpr double kSpreadsCount = 4;
constexpr double kWorthBesideSpreads = 8;
constexpr std::size_t kSamplesForKneeBesideSpreads = 6;
// Of thousands of sizes, not every boundary is tried.
constexpr std::size_t kMaxBoundaries = 256;

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

// What the squared relative error of each sample counts, 1 on average.
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

// Samples by size, with their weights.
struct Samples {
  std::span<const Point> points;
  std::span<const double> weights;

  Samples part(std::size_t begin, std::size_t end) const {
    return {points.subspan(begin, end - begin), weights.subspan(begin, end - begin)};
  }
  std::size_t size() const { return points.size(); }
};

// The line from `from` on, which is no larger than the samples' sizes.
Segment lineThrough(const Samples& samples, double from) {
  const bool oneSize = samples.points.front().x == samples.points.back().x;
  const std::vector<double> line = solve(
      samples.points, samples.weights, oneSize ? 1 : 2,
      [&](const Point& point, std::size_t feature) { return feature == 0 ? 1.0 : point.x - from; });
  return {from, line[0], oneSize ? 0 : line[1]};
}

double squaredError(const Samples& samples, const Fit& fit) {
  return squaredError(samples.points, samples.weights,
                      [&](const Point& point) { return fit.at(point.x); });
}

// Fisher's F of the second line: by how much it and the knee lower the error, per parameter, in
// units of what remains per degree of freedom. Both with the error that is good enough, so that
// what is left of a perfect line is nothing to explain. `spread`: the samples' typical one, 0 if it
// is not known.
double worthOfKnee(double lineError, double pairError, std::size_t samples, double spread) {
  constexpr double kLine = 2, kPair = 5;
  const double n = static_cast<double>(samples), floor = n * kGoodEnough * kGoodEnough;
  const double error = kErrorOfSpread * spread, known = spread > 0 ? kSpreadsCount : 0;
  const double expected = known * (kModelError * kModelError + error * error);
  return (lineError - pairError) / (kPair - kLine) /
         ((pairError + floor + expected) / (n - kPair + known));
}

// Where to go over from one line to the other: where a steeper one meets the first, but not before
// the sample at `below`; else at the second's own first sample.
double kneeOf(const Segment& first, const Segment& second, double below) {
  if (second.beta <= first.beta || second.at(below) > first.at(below)) return second.from;
  const double knee =
      second.from + (first.at(second.from) - second.alpha) / (second.beta - first.beta);
  return std::max(knee, below);
}

// The best pair of lines; nothing where there are too few sizes.
std::optional<Fit> fitPair(const Samples& samples) {
  std::vector<std::size_t> starts;  // of each size
  for (std::size_t i = 0; i < samples.size(); ++i)
    if (i == 0 || samples.points[i].x != samples.points[i - 1].x) starts.push_back(i);
  std::optional<Fit> best;
  double least = 0;
  const std::size_t stride = 1 + starts.size() / kMaxBoundaries;
  for (std::size_t s = kSizesPerSegment; s + kSizesPerSegment <= starts.size(); s += stride) {
    const std::size_t boundary = starts[s];
    const Segment first = lineThrough(samples.part(0, boundary), 0);
    Segment second =
        lineThrough(samples.part(boundary, samples.size()), samples.points[boundary].x);
    const double knee = kneeOf(first, second, samples.points[boundary - 1].x);
    if (knee > samples.points.back().x) continue;
    // Raised where it would begin below the first: predictions do not fall.
    second = {knee, std::max(second.at(knee), first.at(knee)), second.beta};
    Fit pair{{first, second}, {}};
    const double error = squaredError(samples, pair);
    if (!best || error < least) {
      least = error;
      best = std::move(pair);
    }
  }
  return best;
}

// Where a jump lies between two samples nobody knows: from one to the other predictions rise
// evenly. Were the first line drawn on to the jump, what has one would seem the best choice before
// it.
void bridgeJump(Fit& fit, const Samples& samples) {
  const Segment& first = fit.segments[0];
  const Segment second = fit.segments[1];
  double below = 0;
  for (const Point& point : samples.points)
    if (point.x < second.from) below = point.x;
  const double rise = second.alpha - first.at(below);
  if (second.alpha <= first.at(second.from) * (1 + 1e-9) || below >= second.from) return;
  fit.segments[1] = {below, first.at(below), rise / (second.from - below)};
  fit.segments.push_back(second);
}

}  // namespace

double Fit::at(double x) const {
  const Segment* segment = segments.data();
  for (const Segment& later : std::span(segments).subspan(1))
    if (x >= later.from) segment = &later;
  return segment->at(x);
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
  const std::vector<double> weights = weightsOf(std::span<const Point>(sorted));
  const Samples samples{sorted, weights};

  Fit fit{{lineThrough(samples, 0)}, {}};
  const double spread = typicalSpread(points);
  if (samples.size() >= (spread > 0 ? kSamplesForKneeBesideSpreads : kSamplesForKnee)) {
    const std::optional<Fit> pair = fitPair(samples);
    if (pair && worthOfKnee(squaredError(samples, fit), squaredError(samples, *pair),
                            samples.size(), spread) > (spread > 0 ? kWorthBesideSpreads : kWorth)) {
      fit = *pair;
      bridgeJump(fit, samples);
    }
  }
  fit.agreement = agreementOf(samples.points, samples.weights,
                              [&](const Point& point) { return fit.at(point.x); });
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
