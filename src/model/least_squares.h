// Linear least squares.
#pragma once

#include <optional>
#include <vector>

namespace moeccl {

// The x with the least |sum of x[j] columns[j] - target|. All columns are as long as the target.
// Nothing where they depend on each other, within rounding.
std::optional<std::vector<double>> leastSquares(std::vector<std::vector<double>> columns,
                                                std::vector<double> target);

// The best x >= 0. A column that is a combination of others, within rounding, may get 0.
std::vector<double> nonNegativeLeastSquares(const std::vector<std::vector<double>>& columns,
                                            const std::vector<double>& target);

}  // namespace moeccl
