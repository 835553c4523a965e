// Parm's own rule: S1 or S2, by the straight lines of three collectives (Algorithm 1).
#pragma once

#include "src/select/layer_model.h"

namespace moeccl {

struct ParmTimes {
  double s1 = 0;
  double s2 = 0;
};

// `published`: as printed, where T = k f B L M / E has a stray M, and the overlapped AlltoAll is charged
// with the whole y. Else with T = k f B L / E, and y / N_MP as in equation 7. Each collective goes by the
// line of the algorithm that is the fastest for it.
ParmTimes parmTimes(LayerModel& model, const LayerSizes& sizes, bool published);
std::string explainParm(LayerModel& model, const LayerSizes& sizes, bool published);

}  // namespace moeccl
