// Parm's own rule: S1 or S2, by the straight lines of three collectives (Algorithm 1). The library
// does not choose by it; it is what the library's choice is compared with.
#pragma once

#include <functional>

#include "perf/perf/layer_space.h"

namespace moeccl::perf::layers {

// What each collective takes for so many bytes of a rank's send buffer: MP-AllGather, the AlltoAll,
// and the AlltoAll that is overlapped with the all-gather (SAA).
struct ParmLines {
  std::function<double(double bytes)> gather, exchange, overlapped;
};
struct ParmTimes {
  double s1 = 0;
  double s2 = 0;
};

// `published`: as printed, where T = k f B L M / E has a stray M, and the overlapped AlltoAll is
// charged with the whole y. Else with T = k f B L / E, and y / N_MP as in equation 7.
ParmTimes parmTimes(const Layer& layer, const ParmLines& lines, bool published);

}  // namespace moeccl::perf::layers
