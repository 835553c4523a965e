#include "src/select/parm.h"

#include <algorithm>

namespace moeccl {
namespace {

constexpr double kBytes = 4;  // of an element

double lineAt(LayerModel& model, const LayerSizes& sizes, Collective collective, GroupKind group,
              double bytes) {
  double slowest = 0;
  for (CostModel& ranks : model.groups(group)) {
    if (ranks.topology().ranks() == 1) continue;
    const AlgorithmChoice given = model.given({"", collective, group, bytes}, sizes);
    const auto way = ranks.fastest(collective, given, bytes).choice;
    slowest = std::max(slowest, ranks.line(collective, way).at(bytes));
  }
  return slowest;
}

}  // namespace

ParmTimes parmTimes(LayerModel& model, const LayerSizes& sizes, bool published) {
  const double mp = sizes.grid.mp, esp = sizes.grid.esp;
  const double x = static_cast<double>(sizes.tokens) * static_cast<double>(sizes.embedding);
  // Parm's y = E T M N_ESP, with E T = k f B L.
  double y = static_cast<double>(sizes.choices) * sizes.capacityFactor * x * esp;
  if (published) y *= static_cast<double>(sizes.embedding);

  // Our lines are over what a rank puts in: a part of x, y / N_MP without the shards' copies, and what
  // is combined.
  const double gather =
      lineAt(model, sizes, Collective::allGather, GroupKind::mp, x / mp * kBytes);
  const double exchange =
      lineAt(model, sizes, Collective::dispatch, GroupKind::world, y / mp / esp * kBytes);
  const double overlapped = lineAt(model, sizes, Collective::combineAllGather, GroupKind::world,
                                   (published ? y : y / mp) * kBytes);
  return {2 * exchange + gather, exchange + overlapped};
}

}  // namespace moeccl
