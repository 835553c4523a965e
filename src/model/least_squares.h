// Least squares with coefficients that must not be negative.
#pragma once

#include <vector>

namespace moeccl {

// The x >= 0 with the least |sum of x[j] columns[j] - target|. All columns are as long as the
// target. One that is a combination of others, within rounding, may get 0.
std::vector<double> nonNegativeLeastSquares(const std::vector<std::vector<double>>& columns,
                                            const std::vector<double>& target);

}  // namespace moeccl
