// One layer, all candidates in turns.
#pragma once

#include <string>
#include <vector>

#include "perf/perf/layer_candidate.h"
#include "perf/perf/layer_options.h"

namespace moeccl::perf::layers {

struct Timed {
  Setting setting;
  moecclSchedule_t followed;  // the schedule that the layer follows; never auto
  int passes;                 // of a turn
  double error;               // of its results from the first candidate's, relatively
  std::size_t timedAs;  // the candidate that ran: an earlier one that does the same, or itself
  std::vector<double> seconds = {};  // per pass on the slowest rank, one for each repetition
  // Turns that a hypervisor disturbed: those that were repeated, and those whose times count
  // nevertheless.
  int repeated = 0, disturbed = 0;
};

struct Absent {
  Setting setting;
  std::string reason;
};

struct Measured {
  std::vector<Timed> timed;  // the first is the baseline
  std::vector<Absent> notOffered;
};

// Outputs and gradients may differ by rounding alone, relative to the largest element.
inline constexpr double kTolerance = 1e-4;

// Runs the candidates, compares what they compute and times them. Collective. Throws
// std::runtime_error, also where something is wrong.
Measured measure(const Layer& layer, const Options& options, const Job& job, Grids& grids);

// Bytes that the layer takes on the fullest node, over all its ranks and candidates.
double bytesOnNode(const Layer& layer, const Options& options, const Job& job);

// The smallest scale at which one of the larger of `layers` takes no more than options.layerSeconds
// and options.memoryGib. Collective.
int chooseScale(const std::vector<Layer>& layers, const Options& options, const Job& job);

}  // namespace moeccl::perf::layers
