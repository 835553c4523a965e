#include "src/moe/layer_sizes.h"

#include "src/select/cluster.h"

namespace moeccl {

LayerSizes sizesOf(const LayerShape& shape) {
  LayerSizes sizes{};
  sizes.grid = asGrid(shape.grid);
  sizes.elementBytes = shape.elementBytes;
  sizes.tokens = shape.tokens;
  sizes.embedding = shape.embedding;
  sizes.localHidden = shape.localHidden;
  sizes.experts = shape.experts;
  sizes.choices = shape.gate.choices;
  sizes.width = shape.choices;
  sizes.logits = gates::logitsPerToken(shape.gate);
  sizes.sums = gates::sumsSize(shape.gate);
  sizes.capacity = shape.capacity();
  sizes.dropless = shape.dropless;
  sizes.residual = shape.residual;
  sizes.partTokens = shape.partTokens;
  if (!shape.dropless && shape.groups % shape.grid.nMp == 0)
    sizes.partGroups = shape.groups / shape.grid.nMp;
  sizes.chunks = shape.schedule == moecclScheduleS1 ? shape.chunks : 0;
  return sizes;
}

}  // namespace moeccl
