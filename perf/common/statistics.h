// What becomes of the times of several ranks and repetitions.
#pragma once

#include <span>
#include <vector>

#include "perf/perf/options.h"

namespace moeccl::perf {

struct Spread {
  double median;
  double min;
  double max;
};
// The spread of at least one value.
Spread spreadOf(std::vector<double> values);

// The value below which a share `at`, from 0 to 1, of at least one value lies; between two of them
// in proportion.
double quantileOf(std::vector<double> values, double at);

struct Quartiles {
  double first;
  double median;
  double third;
};
Quartiles quartilesOf(const std::vector<double>& values);

// `times` holds `count` values of each rank, rank by rank; returns one value for each place.
std::vector<double> overRanks(std::span<const double> times, std::size_t count, Average average);

// reference[i] / times[i]: how many times faster than the reference each repetition was.
Spread ratioOf(const std::vector<double>& reference, const std::vector<double>& times);

}  // namespace moeccl::perf
