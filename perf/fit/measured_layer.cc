// Makes a layer with random weights and tokens, and runs its passes.
#include "perf/fit/measured_layer.h"

#include <vector>

#include "perf/common/competitor.h"

namespace moeccl::perf {

MeasuredLayer::MeasuredLayer(moecclGrid_t grid, const moecclMoeConfig_t& config, Memory& memory)
    : memory_(memory),
      gate_(memory),
      first_(memory),
      second_(memory),
      input_(memory),
      gateGradient_(memory),
      firstGradient_(memory),
      secondGradient_(memory),
      output_(memory) {
  moecclMoeLayer_t layer = nullptr;
  require(moecclMoeLayerCreate(grid, &config, &layer), "make a layer", nullptr);
  layer_.reset(layer);
  moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
  require(moecclMoeLayerGetShapes(layer, &shapes), "ask for the shapes", nullptr);

  const std::int64_t expert = config.embedding * shapes.localHidden;
  fill(gate_, gateGradient_, config.embedding * config.experts);
  fill(input_, output_, config.tokens * config.embedding);
  fill(first_, firstGradient_, shapes.localExperts * expert);
  fill(second_, secondGradient_, shapes.localExperts * expert);
  moecclMoeWeights_t weights = MOECCL_MOE_WEIGHTS_INITIALIZER;
  weights.gate = gate_.data();
  weights.w1 = first_.data();
  weights.w2 = second_.data();
  require(moecclMoeLayerSetWeights(layer, &weights), "set weights", nullptr);
  moecclMoeGradients_t gradients = MOECCL_MOE_GRADIENTS_INITIALIZER;
  gradients.gate = gateGradient_.data();
  gradients.w1 = firstGradient_.data();
  gradients.w2 = secondGradient_.data();
  require(moecclMoeLayerSetGradients(layer, &gradients), "set gradients", nullptr);
  forward();  // a backward pass takes one before it, whosever turn is first
}

void MeasuredLayer::forward() {
  require(moecclMoeForward(layer_.get(), input_.data(), output_.data(), memory_.stream()),
          "forward", nullptr);
}

void MeasuredLayer::backward() {
  require(moecclMoeBackward(layer_.get(), input_.data(), 1, output_.data(), memory_.stream()),
          "backward", nullptr);
}

void MeasuredLayer::fill(Buffer& numbers, Buffer& gradient, std::int64_t count) {
  std::uniform_real_distribution<float> values(-1, 1);
  std::vector<float> all(static_cast<std::size_t>(count));
  for (float& value : all) value = values(random_);
  const std::size_t bytes = all.size() * sizeof(float);
  numbers.atLeast(bytes);
  gradient.atLeast(bytes);
  memory_.put(numbers.data(), all.data(), bytes);
}

}  // namespace moeccl::perf
