// Minimises a sum of squares by damped Gauss-Newton steps (Levenberg and Marquardt), with slopes
// from differences. A step is a linear least-squares problem.
#include "src/model/minimise.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <optional>
#include <utility>

#include "src/model/least_squares.h"

namespace moeccl {
namespace {

using Vector = std::vector<double>;
using Matrix = std::vector<Vector>;

constexpr int kMostRounds = 60;
constexpr double kDifference = 1e-4;  // of a parameter, for slopes
constexpr double kLongestStep = 2;    // of a parameter
constexpr double kGoodEnough = 1e-7;  // relative change of the sum
constexpr double kFirstDamping = 1e-2, kLeastDamping = 1e-9, kMostDamping = 1e9;
constexpr double kLeastSteepness = 1e-6;

double dot(const Vector& a, const Vector& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// The slopes of all residuals, parameter by parameter; fewer where it was enough before.
Matrix slopesAt(const Vector& x, const Vector& here, const Residuals& residuals,
                const std::function<bool()>& enough) {
  Matrix slopes;
  for (std::size_t p = 0; p < x.size() && !enough(); ++p) {
    Vector beside = x;
    beside[p] += kDifference;
    Vector slope = residuals(beside);
    for (std::size_t r = 0; r < slope.size(); ++r) slope[r] = (slope[r] - here[r]) / kDifference;
    slopes.push_back(std::move(slope));
  }
  return slopes;
}

// What to take off x so that residuals become 0 as far as their slopes tell. The larger `damping`,
// the shorter the step: each parameter has one more residual, the step itself.
std::optional<Vector> stepFrom(Matrix slopes, Vector here, double damping) {
  const std::size_t rows = here.size();
  here.resize(rows + slopes.size());
  for (std::size_t p = 0; p < slopes.size(); ++p) {
    const double steepness = dot(slopes[p], slopes[p]);
    slopes[p].resize(here.size());
    slopes[p][rows + p] = std::sqrt(damping * (steepness + kLeastSteepness));
  }
  return leastSquares(std::move(slopes), std::move(here));
}

}  // namespace

Vector minimise(Vector x, const Residuals& residuals, const std::function<bool()>& enough) {
  Vector here = residuals(x);
  double sum = dot(here, here), damping = kFirstDamping;
  for (int round = 0; round < kMostRounds; ++round) {
    const Matrix slopes = slopesAt(x, here, residuals, enough);
    if (slopes.size() < x.size()) break;
    const double before = sum;
    for (; sum == before && damping < kMostDamping && !enough(); damping *= 8) {
      const std::optional<Vector> step = stepFrom(slopes, here, damping);
      if (!step) continue;
      Vector there = x;
      for (std::size_t i = 0; i < x.size(); ++i)
        there[i] -= std::clamp((*step)[i], -kLongestStep, kLongestStep);
      Vector left = residuals(there);
      if (const double lower = dot(left, left); lower < sum) {
        sum = lower;
        x = std::move(there);
        here = std::move(left);
        damping = std::max(damping / 64, kLeastDamping);
      }
    }
    if (before - sum <= kGoodEnough * before) break;
  }
  return x;
}

}  // namespace moeccl
