// How good choices of a schedule were, held against what was measured.
#pragma once

#include <moeccl/moe.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "perf/perf/layer_measure.h"

namespace moeccl::perf::layers {

// The candidate with the least median, and how much times differ by themselves.
struct Best {
  std::size_t candidate;  // index
  double seconds;         // its median
  double noise;  // median over the candidates that were timed of (third quartile - first) / median
};
Best bestOf(const std::vector<Timed>& timed);

// The candidate of a schedule with automatic algorithms; moecclScheduleAuto: the library's own
// choice of both. Nothing where it was not measured.
std::optional<std::size_t> candidateOf(const std::vector<Timed>& timed, moecclSchedule_t schedule);

// What a choice has cost.
struct Verdict {
  double regret;  // its median over the best candidate's, less 1; never negative
  bool right;     // it follows the best candidate's schedule, whatever the algorithms
  // It cannot be told from the best: it is the best, or its times from first to third quartile
  // overlap the best one's, or its regret is no more than the noise.
  bool withinNoise;
};
Verdict judge(const std::vector<Timed>& timed, const Best& best, std::size_t chosen);

// A rule's verdicts over all layers in which what it chose was measured; at least one.
struct Summary {
  std::size_t layers;
  double meanRegret;
  double worstRegret;
  double right;  // shares
  double withinNoise;
};
Summary summaryOf(const std::vector<Verdict>& verdicts);

// |predicted - measured| / measured.
double predictionError(double predicted, double measured);

// Times of the baseline over those of another schedule, both with automatic algorithms; of auto,
// with all of it. Nothing where it was not measured.
std::optional<double> speedupOf(const std::vector<Timed>& timed, moecclSchedule_t schedule);

}  // namespace moeccl::perf::layers
