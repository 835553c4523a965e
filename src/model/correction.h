// What samples say beyond the line that was fitted to them. A line is what is true on average;
// where one algorithm overtakes another, the samples nearby say so better.
#pragma once

#include <span>
#include <vector>

#include "src/model/fit.h"

namespace moeccl {

// At size `x` the line is to be multiplied by `factor`.
struct Correction {
  double x = 0;
  double factor = 1;

  bool operator==(const Correction&) const = default;
};

// One for each size that was measured, ascending. Of what the samples are off, that much counts
// which their spreads do not explain (as James and Stein shrink means); a spread that is not known
// explains nothing. Never more than kMostCorrected times, or a part of so many. Corrected, the line
// does not fall either: a larger size that took less was one of the two disturbed, and both count
// by what their spreads say of them. `fit` is of these samples.
inline constexpr double kMostCorrected = 10;
std::vector<Correction> correctionsOf(const Fit& fit, std::span<const Point> samples);

// Between two by a straight line; below the first and beyond the last theirs. 1 where there are
// none. Takes the logarithm of their number.
double factorAt(std::span<const Correction> corrections, double x);

}  // namespace moeccl
