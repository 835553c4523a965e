// What the model must know of a layer.
#pragma once

#include "src/moe/layer_shape.h"
#include "src/moe/schedule_terms.h"

namespace moeccl {

LayerSizes sizesOf(const LayerShape& shape);

}  // namespace moeccl
