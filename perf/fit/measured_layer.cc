#include "perf/fit/measured_layer.h"

#include "perf/contender.h"

namespace moeccl::perf {

MeasuredLayer::MeasuredLayer(moecclGrid_t grid, const moecclMoeConfig_t& config) {
  moecclMoeLayer_t layer = nullptr;
  require(moecclMoeLayerCreate(grid, &config, &layer), "make a layer", nullptr);
  layer_.reset(layer);
  moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
  require(moecclMoeLayerGetShapes(layer, &shapes), "ask for the shapes", nullptr);

  const auto size = [](std::int64_t a, std::int64_t b, std::int64_t c) {
    return static_cast<std::size_t>(a * b * c);
  };
  gate_ = random(size(config.embedding, config.experts, 1));
  input_ = random(size(config.tokens, config.embedding, 1));
  first_ = random(size(shapes.localExperts, config.embedding, shapes.localHidden));
  second_ = random(size(shapes.localExperts, shapes.localHidden, config.embedding));
  output_.resize(input_.size());
  moecclMoeWeights_t weights = MOECCL_MOE_WEIGHTS_INITIALIZER;
  weights.gate = gate_.data();
  weights.w1 = first_.data();
  weights.w2 = second_.data();
  require(moecclMoeLayerSetWeights(layer, &weights), "set weights", nullptr);

  gateGradient_.resize(gate_.size());
  firstGradient_.resize(first_.size());
  secondGradient_.resize(second_.size());
  moecclMoeGradients_t gradients = MOECCL_MOE_GRADIENTS_INITIALIZER;
  gradients.gate = gateGradient_.data();
  gradients.w1 = firstGradient_.data();
  gradients.w2 = secondGradient_.data();
  require(moecclMoeLayerSetGradients(layer, &gradients), "set gradients", nullptr);
  forward();  // a backward pass takes one before it, whosever turn is first
}

void MeasuredLayer::forward() {
  require(moecclMoeForward(layer_.get(), input_.data(), output_.data(), nullptr), "forward",
          nullptr);
}

void MeasuredLayer::backward() {
  require(moecclMoeBackward(layer_.get(), input_.data(), 1, output_.data(), nullptr), "backward",
          nullptr);
}

std::vector<float> MeasuredLayer::random(std::size_t size) {
  std::uniform_real_distribution<float> values(-1, 1);
  std::vector<float> all(size);
  for (float& value : all) value = values(random_);
  return all;
}

}  // namespace moeccl::perf
