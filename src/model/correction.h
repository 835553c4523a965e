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

// One correction for each size that was measured, ascending. It takes that part of the samples'
// error which their spreads do not explain (as James and Stein shrink means); a spread that is not
// known explains nothing. Factors stay between 1 / kMostCorrected and kMostCorrected. The corrected
// line does not fall either: where a larger size took less, one of the two was disturbed, and both
// count by their spreads. `fit` is of these samples.
inline constexpr double kMostCorrected = 10;
std::vector<Correction> correctionsOf(const Fit& fit, std::span<const Point> samples);

// The factor at x: on a straight line between two corrections, the first one's below it, and the
// last one's beyond it. 1 where there are none. Takes time logarithmic in their number.
double factorAt(std::span<const Correction> corrections, double x);

}  // namespace moeccl
