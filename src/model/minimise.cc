// Minimises a sum of squares by damped Gauss-Newton steps (Levenberg and Marquardt), with slopes
// from differences.
#include "src/model/minimise.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

namespace moeccl {
namespace {

using Vector = std::vector<double>;
using Matrix = std::vector<Vector>;

constexpr int kMostRounds = 60;
constexpr double kDifference = 1e-4;  // of a parameter, for slopes
constexpr double kLongestStep = 2;    // of a parameter
constexpr double kGoodEnough = 1e-7;  // relative change of the sum
constexpr double kFirstDamping = 1e-2, kLeastDamping = 1e-9, kMostDamping = 1e9;

double dot(const Vector& a, const Vector& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// Solves a symmetric positive definite system by Cholesky's factors, in place.
Vector solve(Matrix a, Vector b) {
  const std::size_t n = b.size();
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j <= i; ++j) {
      double left = a[i][j];
      for (std::size_t k = 0; k < j; ++k) left -= a[i][k] * a[j][k];
      a[i][j] = i == j ? std::sqrt(std::max(left, 1e-300)) : left / a[j][j];
    }
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < i; ++k) b[i] -= a[i][k] * b[k];
    b[i] /= a[i][i];
  }
  for (std::size_t i = n; i-- > 0;) {
    for (std::size_t k = i + 1; k < n; ++k) b[i] -= a[k][i] * b[k];
    b[i] /= a[i][i];
  }
  return b;
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

}  // namespace

Vector minimise(Vector x, const Residuals& residuals, const std::function<bool()>& enough) {
  Vector here = residuals(x);
  double sum = dot(here, here), damping = kFirstDamping;
  for (int round = 0; round < kMostRounds; ++round) {
    const Matrix slopes = slopesAt(x, here, residuals, enough);
    if (slopes.size() < x.size()) break;
    Matrix normal(x.size(), Vector(x.size()));
    Vector downhill(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      downhill[i] = -dot(slopes[i], here);
      for (std::size_t j = 0; j < x.size(); ++j) normal[i][j] = dot(slopes[i], slopes[j]);
    }
    const double before = sum;
    for (; sum == before && damping < kMostDamping && !enough(); damping *= 8) {
      Matrix damped = normal;
      for (std::size_t i = 0; i < x.size(); ++i) damped[i][i] += damping * (normal[i][i] + 1e-6);
      const Vector step = solve(std::move(damped), downhill);
      Vector there = x;
      for (std::size_t i = 0; i < x.size(); ++i)
        there[i] += std::clamp(step[i], -kLongestStep, kLongestStep);
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
