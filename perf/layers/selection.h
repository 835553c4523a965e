// What the library says about a layer before it runs.
#pragma once

#include <moeccl/model.h>

#include <array>
#include <string>
#include <vector>

#include "perf/layers/space.h"

namespace moeccl::perf::layers {

struct Prediction {
  moecclSchedule_t schedule;
  double seconds;
  double communication;
  bool measured;
  std::string exchanges;
};

// By moecclSelectionRule_t: the schedules that the rule knows, the fastest predicted first.
using Selection = std::array<std::vector<Prediction>, moecclNumRules>;

// Throws std::runtime_error.
Selection selectionOf(const Layer& layer, moecclPass_t pass, moecclGrid_t grid);

}  // namespace moeccl::perf::layers
