#include "src/select/parm.h"

#include <algorithm>

#include "src/text.h"

namespace moeccl {
namespace {

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

struct ParmTerms {
  double gather, exchange, overlapped;
};

ParmTerms termsOf(LayerModel& model, const LayerSizes& sizes, bool published) {
  const double mp = sizes.grid.mp, esp = sizes.grid.esp;
  const auto bytes = static_cast<double>(sizes.elementBytes);
  const double x = static_cast<double>(sizes.tokens) * static_cast<double>(sizes.embedding);
  // Parm's y = E T M N_ESP, with E T = k f B L.
  double y = static_cast<double>(sizes.choices) * sizes.capacityFactor * x * esp;
  if (published) y *= static_cast<double>(sizes.embedding);

  // Our lines are over what a rank puts in: a part of x, y / N_MP without the shards' copies, and what
  // is combined.
  return {
      lineAt(model, sizes, Collective::allGather, GroupKind::mp, x / mp * bytes),
      lineAt(model, sizes, Collective::dispatch, GroupKind::world, y / mp / esp * bytes),
      lineAt(model, sizes, Collective::combineAllGather, GroupKind::world,
             (published ? y : y / mp) * bytes),
  };
}

ParmTimes timesOf(const ParmTerms& terms) {
  return {2 * terms.exchange + terms.gather, terms.exchange + terms.overlapped};
}

}  // namespace

ParmTimes parmTimes(LayerModel& model, const LayerSizes& sizes, bool published) {
  return timesOf(termsOf(model, sizes, published));
}

std::string explainParm(LayerModel& model, const LayerSizes& sizes, bool published) {
  const ParmTerms terms = termsOf(model, sizes, published);
  const ParmTimes times = timesOf(terms);
  return stringf(
      "Parm's Algorithm 1%s\n"
      "    MP-AllGather %.3f ms, AlltoAll %.3f ms, overlapped AlltoAll %.3f ms\n"
      "    S1: 2 AlltoAll + MP-AllGather = %.3f ms\n"
      "    S2: AlltoAll + overlapped AlltoAll = %.3f ms\n",
      published ? ", as published" : ", corrected", terms.gather * 1e3, terms.exchange * 1e3,
      terms.overlapped * 1e3, times.s1 * 1e3, times.s2 * 1e3);
}

}  // namespace moeccl
