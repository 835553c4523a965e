// All that is known of a layer, and what becomes of many of them.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "perf/perf/layer_judgement.h"
#include "perf/perf/layer_selection.h"

namespace moeccl::perf::layers {

struct Outcome {
  Layer layer;
  Measured measured;
  Selection selection;
  Best best;
};

// A way to choose a schedule.
struct Rule {
  std::string name;
  // The index of the candidate that stands for the choice; nothing where it was not measured.
  std::optional<std::size_t> (*choose)(const Outcome& outcome, moecclSchedule_t always);
  moecclSchedule_t always;  // of rules that do not ask
};

// The library's own choice first: auto as it was measured. Then Parm's Algorithm 1, as published
// and corrected, and each schedule taken always; all of these with automatic algorithms.
std::vector<Rule> rules();
std::optional<Verdict> verdictOf(const Rule& rule, const Outcome& outcome);
// Nothing where it has no verdict on any layer.
std::optional<Summary> summaryOf(const Rule& rule, const std::vector<Outcome>& outcomes);

// The errors of the model's predictions of a schedule, for all layers for which it was measured.
std::vector<double> predictionErrors(moecclSchedule_t schedule,
                                     const std::vector<Outcome>& outcomes);
// Layers for which the model's first is not what auto followed: none, unless the library is wrong.
std::size_t disagreements(const std::vector<Outcome>& outcomes);

// As in Parm's table IV: the mean speedup of S1, S2 or auto over the baseline.
struct Speedups {
  int nMp, nEsp;
  moecclSchedule_t schedule;
  std::size_t layers;
  double mean;
};
std::vector<Speedups> speedups(const std::vector<Outcome>& outcomes);

}  // namespace moeccl::perf::layers
