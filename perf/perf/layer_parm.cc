// Predicts the times of S1 and S2 by Parm's Algorithm 1, as published or corrected.
#include "perf/perf/layer_parm.h"

namespace moeccl::perf::layers {

ParmTimes parmTimes(const Layer& layer, const ParmLines& lines, bool published) {
  constexpr double kBytes = sizeof(float);
  const double mp = layer.grid.nMp, esp = layer.grid.nEsp;
  const double x = static_cast<double>(layer.tokens()) * static_cast<double>(layer.embedding);
  // Parm's y = E T M N_ESP, with E T = k f B L.
  double y = static_cast<double>(layer.topK) * layer.rowsPerChoice() * x * esp;
  if (published) y *= static_cast<double>(layer.embedding);

  // Our lines are over what a rank puts in: a part of x, y / N_MP without the shards' copies, and
  // what is combined.
  const double gather = lines.gather(x / mp * kBytes);
  const double exchange = lines.exchange(y / mp / esp * kBytes);
  const double overlapped = lines.overlapped((published ? y : y / mp) * kBytes);
  return {2 * exchange + gather, exchange + overlapped};
}

}  // namespace moeccl::perf::layers
