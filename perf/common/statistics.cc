// Computes medians, quantiles and ratios of times, and brings the times of all ranks together by
// mean, least or largest.
#include "perf/common/statistics.h"

#include <algorithm>

namespace moeccl::perf {

Spread spreadOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  const double median =
      values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
  return {median, values.front(), values.back()};
}

double quantileOf(std::vector<double> values, double at) {
  std::sort(values.begin(), values.end());
  const double place = at * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
}

Quartiles quartilesOf(const std::vector<double>& values) {
  return {quantileOf(values, 0.25), quantileOf(values, 0.5), quantileOf(values, 0.75)};
}

std::vector<double> overRanks(std::span<const double> times, std::size_t count, Average average) {
  std::vector<double> result(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(count));
  if (average == Average::kRank0) return result;
  for (std::size_t i = count; i < times.size(); ++i) {
    double& value = result[i % count];
    switch (average) {
      case Average::kMin:
        value = std::min(value, times[i]);
        break;
      case Average::kMax:
        value = std::max(value, times[i]);
        break;
      default:
        value += times[i];
    }
  }
  if (average == Average::kMean)
    for (double& value : result) value /= static_cast<double>(times.size() / count);
  return result;
}

Spread ratioOf(const std::vector<double>& reference, const std::vector<double>& times) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < times.size(); ++i) ratios.push_back(reference[i] / times[i]);
  return spreadOf(std::move(ratios));
}

}  // namespace moeccl::perf
