// What the model lists: a layer's schedules, and how each may be run.
#include <algorithm>
#include <optional>
#include <utility>

#include "src/moe/layer_model.h"

namespace moeccl {

std::vector<LayerShape> LayerModel::cut(const LayerShape& shape, Free free) {
  std::vector<LayerShape> all{shape};
  if (!free.chunks || shape.dropless || !cutsChunks(shape.schedule)) return all;
  const std::int64_t groupsOfPart = shape.groups / shape.grid.nMp;
  for (const std::int64_t chunks : kChunks)
    if (chunks > 1 && groupsOfPart % chunks == 0) all.emplace_back(shape).chunks = chunks;
  return all;
}

bool LayerModel::canSave(const LayerShape& shape) const {
  return kind_ == moecclLinksHost &&
         groups_[static_cast<std::size_t>(GroupKind::world)][0].topology().nodes() > 1 &&
         shape.choices > 1 && routes(shape.schedule, shape);
}

LayerModel::Estimate LayerModel::fastestOf(const LayerShape& shape, std::span<const Pass> passes,
                                           Free free) {
  std::optional<Estimate> best;
  for (const LayerShape& it : cut(shape, free)) {
    Estimate one = estimate(it, passes);
    if (!best || one.seconds < best->seconds) best = std::move(one);
  }
  if (!free.routing || !canSave(shape)) return std::move(*best);
  LayerShape routed = shape;
  routed.routed = true;
  Estimate other = estimate(routed, passes);
  if (other.seconds < best->seconds) std::swap(other, *best);
  best->otherwise = other.seconds;
  return std::move(*best);
}

std::vector<LayerModel::Estimate> LayerModel::estimates(std::span<const LayerShape> offered,
                                                        std::span<const Pass> passes, Free free) {
  std::vector<Estimate> all;
  for (const LayerShape& shape : offered) all.push_back(fastestOf(shape, passes, free));
  std::ranges::stable_sort(all, {}, &Estimate::seconds);
  // What cannot run is no choice, unless nothing else is: then calls say why.
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
