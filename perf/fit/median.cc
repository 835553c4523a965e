// Computes a median, and how well it is known from the order of the values alone, by the binomial
// distribution.
#include "perf/fit/median.h"

#include <algorithm>
#include <cmath>

#include "perf/common/statistics.h"

namespace moeccl::perf {
namespace {

constexpr double kDoubt = 0.05;

// How many values may be left out at each end: the median lies outside of what is between when so
// few of n fall on one side of it, which coins would do with that probability.
std::size_t leftOut(std::size_t n) {
  double exactly = std::pow(0.5, static_cast<double>(n)), atMost = exactly;
  std::size_t k = 0;
  while (2 * atMost <= kDoubt && 2 * (k + 1) < n) {
    exactly *= static_cast<double>(n - k) / static_cast<double>(k + 1);
    atMost += exactly;
    ++k;
  }
  return k == 0 ? 0 : k - 1;
}

}  // namespace

Median medianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto [first, median, third] = quartilesOf(values);
  const std::size_t ends = leftOut(values.size());
  const double low = values[ends], high = values[values.size() - 1 - ends];
  return {median, std::max(median - low, high - median) / median, (third - first) / median};
}

}  // namespace moeccl::perf
