// Solves least squares by Householder reflections, and those with non-negative coefficients by an
// active set, on columns that are scaled to length 1.
#include "src/model/least_squares.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <optional>

namespace moeccl {
namespace {

using Vector = std::vector<double>;

// What is left of a column after taking the others out of it, and what a residual has in common
// with one of length 1, are nothing below this.
constexpr double kNothing = 1e-10;

double dot(const Vector& a, const Vector& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// Lawson and Hanson, Solving Least Squares Problems, chapter 23: columns enter one by one, the
// steepest first, and leave when their coefficient would become negative.
class ActiveSet {
 public:
  ActiveSet(const std::vector<Vector>& columns, const Vector& target)
      : columns_(columns), target_(target), x_(columns.size()), refused_(columns.size()) {}

  Vector solve() {
    // Each round lowers the error, so no set comes twice; rounding must not turn that into for
    // ever.
    for (std::size_t round = 0; round < 10 * columns_.size(); ++round) {
      const std::optional<std::size_t> next = steepest();
      if (!next) break;
      enter(*next);
    }
    return x_;
  }

 private:
  std::optional<std::size_t> steepest() const {
    Vector residual = target_;
    for (std::size_t c : inside_)
      for (std::size_t r = 0; r < residual.size(); ++r) residual[r] -= x_[c] * columns_[c][r];
    double most = kNothing * std::sqrt(dot(target_, target_));
    std::optional<std::size_t> best;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      if (refused_[c] || std::ranges::count(inside_, c)) continue;
      const double slope = dot(columns_[c], residual);
      if (slope > most) {
        most = slope;
        best = c;
      }
    }
    return best;
  }

  // The best coefficients of those inside, of either sign.
  std::optional<Vector> free() const {
    std::vector<Vector> some;
    for (std::size_t c : inside_) some.push_back(columns_[c]);
    return leastSquares(std::move(some), target_);
  }

  void enter(std::size_t next) {
    inside_.push_back(next);
    std::optional<Vector> wanted = free();
    if (!wanted || wanted->back() <= 0) {  // it depends on the others, or helps by rounding only
      inside_.pop_back();
      refused_[next] = true;
      return;
    }
    refused_.assign(refused_.size(), false);
    // Columns that do not depend on each other never do after some have left.
    while (wanted && std::ranges::any_of(*wanted, [](double value) { return value <= 0; })) {
      goTowards(*wanted);
      wanted = free();
    }
    for (std::size_t i = 0; wanted && i < inside_.size(); ++i) x_[inside_[i]] = (*wanted)[i];
  }

  // As far as no coefficient becomes negative; those that have become 0 leave.
  void goTowards(const Vector& wanted) {
    double part = 1;
    std::size_t first = 0;
    for (std::size_t i = 0; i < inside_.size(); ++i) {
      const double now = x_[inside_[i]];
      if (wanted[i] <= 0 && now / (now - wanted[i]) <= part) {
        part = now / (now - wanted[i]);
        first = inside_[i];
      }
    }
    for (std::size_t i = 0; i < inside_.size(); ++i)
      x_[inside_[i]] += part * (wanted[i] - x_[inside_[i]]);
    x_[first] = 0;
    std::erase_if(inside_, [&](std::size_t c) {
      if (x_[c] > 0) return false;
      x_[c] = 0;
      return true;
    });
  }

  const std::vector<Vector>& columns_;
  const Vector& target_;
  Vector x_;
  std::vector<std::size_t> inside_;
  std::vector<bool> refused_;
};

}  // namespace

std::optional<Vector> leastSquares(std::vector<Vector> columns, Vector target) {
  const std::size_t rows = target.size(), count = columns.size();
  Vector diagonal(count);
  for (std::size_t c = 0; c < count; ++c) {
    Vector& mirror = columns[c];
    double square = 0;
    for (std::size_t r = c; r < rows; ++r) square += mirror[r] * mirror[r];
    if (square <= kNothing * kNothing) return std::nullopt;
    diagonal[c] = mirror[c] > 0 ? -std::sqrt(square) : std::sqrt(square);
    mirror[c] -= diagonal[c];
    const double half = -diagonal[c] * mirror[c];
    const auto reflect = [&](Vector& vector) {
      double common = 0;
      for (std::size_t r = c; r < rows; ++r) common += mirror[r] * vector[r];
      for (std::size_t r = c; r < rows; ++r) vector[r] -= common / half * mirror[r];
    };
    for (std::size_t later = c + 1; later < count; ++later) reflect(columns[later]);
    reflect(target);
  }
  Vector x(count);
  for (std::size_t c = count; c-- > 0;) {
    x[c] = target[c];
    for (std::size_t later = c + 1; later < count; ++later) x[c] -= columns[later][c] * x[later];
    x[c] /= diagonal[c];
  }
  return x;
}

Vector nonNegativeLeastSquares(const std::vector<Vector>& columns, const Vector& target) {
  std::vector<Vector> unit = columns;
  Vector norms;
  for (Vector& column : unit) {
    norms.push_back(std::sqrt(dot(column, column)));
    if (norms.back() > 0)
      for (double& value : column) value /= norms.back();
  }
  Vector x = ActiveSet(unit, target).solve();
  for (std::size_t c = 0; c < x.size(); ++c) x[c] = norms[c] > 0 ? x[c] / norms[c] : 0;
  return x;
}

}  // namespace moeccl
