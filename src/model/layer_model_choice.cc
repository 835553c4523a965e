// What the model lists: a layer's schedules, and how each may be run.
#include <algorithm>
#include <optional>
#include <utility>

#include "src/model/layer_model.h"

namespace moeccl {

std::vector<LayerShape> LayerModel::cut(const LayerShape& shape, Free free) const {
  std::vector<LayerShape> all{shape};
  if (!free.chunks || !cutsChunks(shape.schedule, shape.dropless, shape.routed)) return all;
  if (shape.dropless && kind_ != moecclLinksHost) return all;
  // Alone there is nothing that could go on beside experts.
  if (groups_[static_cast<std::size_t>(GroupKind::world)][0].topology().ranks() == 1) return all;
  const std::int64_t groupsOfPart = shape.groups / shape.grid.nMp;
  for (const std::int64_t chunks : kChunks)
    if (chunks > 1 && (shape.dropless || groupsOfPart % chunks == 0))
      all.push_back(inChunks(shape, chunks));
  return all;
}

bool LayerModel::canSave(const LayerShape& shape) const {
  return kind_ == moecclLinksHost &&
         groups_[static_cast<std::size_t>(GroupKind::world)][0].topology().nodes() > 1 &&
         shape.choices > 1 && routesUnder(shape.schedule, shape);
}

LayerModel::Estimate LayerModel::fastestOf(const LayerShape& shape, std::span<const Pass> passes,
                                           Free free) {
  const auto inAnyChunks = [&](const LayerShape& one) {
    std::optional<Estimate> best;
    for (const LayerShape& it : cut(one, free)) {
      Estimate now = estimate(it, passes);
      if (!best || now.seconds < best->seconds) best = std::move(now);
    }
    return std::move(*best);
  };
  Estimate best = inAnyChunks(shape);
  if (!free.routing || !canSave(shape)) return best;
  LayerShape routed = shape;
  routed.routed = true;
  Estimate other = inAnyChunks(routed);
  if (other.seconds < best.seconds) std::swap(other, best);
  best.otherwise = other.seconds;
  return best;
}

std::vector<LayerModel::Estimate> LayerModel::estimates(std::span<const LayerShape> offered,
                                                        std::span<const Pass> passes, Free free) {
  std::vector<Estimate> all;
  for (const LayerShape& shape : offered) all.push_back(fastestOf(shape, passes, free));
  std::ranges::stable_sort(all, {}, &Estimate::seconds);
  // A schedule that cannot run is no choice, unless there is no other: then calls say why.
  if (!all.empty() && all[0].seconds < kForEver)
    std::erase_if(all, [](const Estimate& it) { return it.seconds == kForEver; });
  std::stable_partition(all.begin(), all.end(), [](const Estimate& it) { return it.automatic; });
  return all;
}

std::vector<LayerModel::Candidate> LayerModel::candidates(std::span<const LayerShape> offered,
                                                          std::span<const Pass> passes, Free free) {
  std::vector<Candidate> all;
  for (const LayerShape& shape : offered)
    for (const LayerShape& it : cut(shape, free)) {
      const Estimate estimate = fastestOf(it, passes, {false, free.routing});
      if (estimate.automatic && estimate.seconds < kForEver)
        all.push_back({estimate.shape, costsOf(estimate, passes)});
    }
  return all;
}

}  // namespace moeccl
