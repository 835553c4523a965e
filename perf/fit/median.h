// How well a median is known.
#pragma once

#include <vector>

namespace moeccl::perf {

struct Median {
  double value;
  // Relative to it. The distance to the farther end of an interval between two of the values, by
  // their order alone: with at least 95 % the true median lies within, whatever the distribution.
  // Up to 5 values cannot promise that; theirs is from the smallest to the largest (n values: 1 -
  // 2^(1 - n), 3: 75 %).
  double uncertainty;
  double spread;  // (third quartile - first) / median
};
// The median of at least one value, all above 0.
Median medianOf(std::vector<double> values);

}  // namespace moeccl::perf
