// Which schedule: what is asked, and what follows from it.
#pragma once

#include <vector>

#include "moeccl/model.h"
#include "src/model/layer_model.h"

namespace moeccl {

struct LayerQuestion {
  moecclMoeConfig_t layer;
  moecclPass_t pass;
  moecclSchedule_t requested;  // by the config or the environment
};

// What follows from a question on a grid: the layer under each schedule that it offers.
struct Subject {
  std::vector<LayerShape> offered;
  std::vector<Pass> passes;
  LayerModel::Free free;
};
// Whether two questions have one answer.
bool same(const LayerQuestion& a, const LayerQuestion& b);
// Throws Error for a config that is wrong.
Subject subjectOf(const LayerQuestion& question, const moecclGridShape_t& grid);

}  // namespace moeccl
