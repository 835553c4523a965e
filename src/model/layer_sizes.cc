// Sets the size of every dimension that a schedule's tables may have, from a layer's shape.
#include <algorithm>

#include "src/model/layer_shape.h"

namespace moeccl {

using schedules::Dim;

schedules::Sizes sizesOf(const LayerShape& shape, const schedules::Schedule& schedule) {
  schedules::Sizes sizes;
  sizes.at(Dim::mp) = shape.grid.nMp;
  sizes.at(Dim::ep) = shape.grid.nEp;
  sizes.at(Dim::esp) = shape.grid.nEsp;
  sizes.at(Dim::ranks) = std::int64_t{shape.grid.nEp} * shape.grid.nEsp;
  sizes.at(Dim::localExperts) = shape.localExperts;
  sizes.at(Dim::tokens) = shape.tokens;
  sizes.at(Dim::partTokens) = shape.partTokens;
  sizes.at(Dim::chunkTokens) = shape.chunkTokens();
  sizes.at(Dim::batchChunkTokens) = shape.batchChunkTokens();
  sizes.at(Dim::capacity) = shape.capacity();
  sizes.at(Dim::slots) = shape.partSlots();
  sizes.at(Dim::chunkSlots) = shape.chunkSlots();
  sizes.at(Dim::embedding) = shape.embedding;
  sizes.at(Dim::choices) = shape.choices;
  sizes.at(Dim::sums) = gates::sumsSize(shape.gate);
  sizes.at(Dim::gateWeights) =
      elementCount({shape.embedding, shape.experts, shape.gate.kind == gates::Kind::noisy ? 2 : 1});
  sizes.at(Dim::residualWeights) =
      elementCount({shape.embedding + 1, shape.innerOf(shape.residual)}) +
      elementCount({shape.embedding, shape.residual}) + shape.embedding;
  const bool lists = std::ranges::any_of(
      schedule.tables, [](const schedules::Table& table) { return has(table, Dim::keptRows); });
  if (lists && !shape.dropless)
    sizes.at(Dim::keptRows) = std::min(elementCount({shape.localExperts, shape.capacity()}),
                                       elementCount({shape.tokens, shape.choices}));
  return sizes;
}

}  // namespace moeccl
