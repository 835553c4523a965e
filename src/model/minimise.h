// Nonlinear least squares of few parameters.
#pragma once

#include <functional>
#include <vector>

namespace moeccl {

using Residuals = std::function<std::vector<double>(const std::vector<double>& x)>;

// An x near `start` where the sum of squared residuals is lowest (Levenberg and Marquardt, with
// slopes by differences). Each parameter is of the size of 1: a logarithm, for instance. As many
// residuals for every x, all finite. Asks `enough` before each look at the residuals but the first:
// where it says so, the best x so far is taken.
std::vector<double> minimise(
    std::vector<double> start, const Residuals& residuals,
    const std::function<bool()>& enough = [] { return false; });

}  // namespace moeccl
