// Corrects a fitted line at each size by the mean error of its samples, weighted by their spreads,
// and pools neighbours where the corrected line would fall.
#include "src/model/correction.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>

namespace moeccl {
namespace {

// The relative error that a sample has besides its spread: conditions drift from one size to the
// next.
constexpr double kDrift = 0.01;

// How far the samples of one size are off, as a factor less 1; those that spread less count more.
double meanError(const Fit& fit, std::span<const Point> samples, double* variance) {
  double sum = 0, weights = 0;
  for (const Point& sample : samples) {
    const double own = kErrorOfSpread * sample.spread;
    const double weight = 1 / (own * own + kDrift * kDrift);
    const double factor =
        std::clamp(sample.seconds / fit.at(sample.x), 1 / kMostCorrected, kMostCorrected);
    sum += weight * (factor - 1);
    weights += weight;
  }
  *variance = 1 / weights;
  return sum / weights;
}

// Neighbours whose predictions would fall from one size to the next, all of one prediction: the
// weighted mean of their logarithms (isotonic regression, by pooling adjacent violators).
void neverFall(const Fit& fit, std::span<const double> variances,
               std::vector<Correction>& corrections) {
  struct Pool {
    double logarithm, weight;
    std::size_t sizes;
  };
  std::vector<Pool> pools;
  for (std::size_t i = 0; i < corrections.size(); ++i) {
    const Correction& it = corrections[i];
    Pool pool{std::log(fit.at(it.x) * it.factor), 1 / variances[i], 1};
    for (; !pools.empty() && pools.back().logarithm > pool.logarithm; pools.pop_back()) {
      const Pool& below = pools.back();
      const double weight = below.weight + pool.weight;
      pool = {(below.weight * below.logarithm + pool.weight * pool.logarithm) / weight, weight,
              below.sizes + pool.sizes};
    }
    pools.push_back(pool);
  }
  std::size_t i = 0;
  for (const Pool& pool : pools)
    for (const std::size_t end = i + pool.sizes; i < end; ++i)
      if (pool.sizes > 1)
        corrections[i].factor = std::exp(pool.logarithm) / fit.at(corrections[i].x);
}

}  // namespace

std::vector<Correction> correctionsOf(const Fit& fit, std::span<const Point> samples) {
  std::vector<Point> sorted;
  std::ranges::copy_if(samples, std::back_inserter(sorted),
                       [&](const Point& sample) { return fit.at(sample.x) > 0; });
  std::ranges::stable_sort(sorted, {}, &Point::x);
  std::vector<Correction> corrections;
  std::vector<double> variances;
  for (auto begin = sorted.begin(); begin != sorted.end();) {
    const auto end = std::find_if(begin, sorted.end(),
                                  [&](const Point& sample) { return sample.x != begin->x; });
    double variance = 0;
    const double error = meanError(fit, {begin, end}, &variance);
    const double counts = std::max(0.0, 1 - variance / std::max(error * error, variance));
    corrections.push_back({begin->x, 1 + counts * error});
    variances.push_back(variance);
    begin = end;
  }
  neverFall(fit, variances, corrections);
  return corrections;
}

double factorAt(std::span<const Correction> corrections, double x) {
  const auto after = std::ranges::upper_bound(corrections, x, {}, &Correction::x);
  if (corrections.empty()) return 1;
  if (after == corrections.begin()) return corrections.front().factor;
  if (after == corrections.end()) return corrections.back().factor;
  const Correction &low = after[-1], &high = *after;
  return low.factor + (high.factor - low.factor) * ((x - low.x) / (high.x - low.x));
}

}  // namespace moeccl
