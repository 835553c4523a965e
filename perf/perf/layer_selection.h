// What is said about a layer before it runs.
#pragma once

#include <moeccl/model.h>

#include <array>
#include <vector>

#include "perf/common/choices.h"
#include "perf/common/job.h"
#include "perf/perf/layer_space.h"

namespace moeccl::perf::layers {

// By what a schedule is chosen.
enum SelectionRule {
  kRuleModel,      // the library's: schedules, fastest algorithms, local work
  kRuleParm,       // Parm's Algorithm 1 as published
  kRuleCorrected,  // the same, corrected (perf/perf/layer_parm.h)
  kRules
};

// By SelectionRule: the schedules that the rule knows, the fastest predicted first.
using Selection = std::array<std::vector<Prediction>, kRules>;

// Collective. Throws std::runtime_error.
Selection selectionOf(const Layer& layer, moecclPass_t pass, moecclGrid_t grid, const Job& job);

}  // namespace moeccl::perf::layers
