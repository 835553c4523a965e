// Draws weights and tokens from a seed, and collects the results of a pass for comparison.
#include "perf/perf/layer_data.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "perf/common/draws.h"

namespace moeccl::perf::layers {
namespace {

std::vector<float> randomFloats(std::int64_t count, double scale, std::uint64_t seed) {
  Draws draws(seed);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = draws.fraction() * static_cast<float>(scale);
  return values;
}

}  // namespace

// Scales keep activations of order 1. Everyone's gate must be the same, tokens those of the MP
// group, and b2 the same on the shards of an expert; which values the rest has is each rank's own
// business.
Data::Data(const Layer& layer, const moecclMoeShapes_t& shapes, moecclPass_t pass, int rank,
           std::uint64_t seed) {
  const std::int64_t embedding = layer.embedding, hidden = shapes.localHidden;
  const std::int64_t experts = shapes.localExperts, group = rank / layer.grid.nMp;
  const double perEmbedding = 1 / std::sqrt(static_cast<double>(embedding));
  const double perHidden = 1 / std::sqrt(static_cast<double>(layer.hidden));
  // Another for each array and each rank, expert or group, and for each --seed.
  const auto seedOf = [seed](std::uint64_t array, std::int64_t which) {
    return (seed * 8 + array) * 1000003 + static_cast<std::uint64_t>(which);
  };
  gate_ = randomFloats(embedding * layer.experts, 4 * perEmbedding, seedOf(0, 0));
  w1_ = randomFloats(experts * embedding * hidden, perEmbedding, seedOf(1, rank));
  b1_ = randomFloats(experts * hidden, 0.5, seedOf(2, rank));
  w2_ = randomFloats(experts * hidden * embedding, perHidden, seedOf(3, rank));
  b2_ = randomFloats(experts * embedding, 0.5, seedOf(4, shapes.firstExpert));
  input_ = randomFloats(layer.tokens() * embedding, 1, seedOf(5, group));
  output_.resize(input_.size());
  weights_.gate = gate_.data();
  weights_.w1 = w1_.data();
  weights_.b1 = b1_.data();
  weights_.w2 = w2_.data();
  weights_.b2 = b2_.data();
  if ((pass & moecclPassBackward) == 0) return;

  outputGradient_ = randomFloats(layer.tokens() * embedding, 1, seedOf(6, group));
  inputGradient_.resize(input_.size());
  const auto make = [](const std::vector<float>& weight, std::vector<float>& gradient) {
    gradient.resize(weight.size());
    return gradient.data();
  };
  gradients_.gate = make(gate_, gateGradient_);
  gradients_.w1 = make(w1_, w1Gradient_);
  gradients_.b1 = make(b1_, b1Gradient_);
  gradients_.w2 = make(w2_, w2Gradient_);
  gradients_.b2 = make(b2_, b2Gradient_);
}

void Data::prepare() {
  for (std::vector<float>* set : {&output_, &inputGradient_})
    std::fill(set->begin(), set->end(), std::numeric_limits<float>::quiet_NaN());
  for (std::vector<float>* added :
       {&gateGradient_, &w1Gradient_, &b1Gradient_, &w2Gradient_, &b2Gradient_})
    std::fill(added->begin(), added->end(), 0.0f);
}

std::vector<ResultArray> Data::results() const {
  std::vector<ResultArray> results = {{"output", output_}};
  if (inputGradient_.empty()) return results;
  results.insert(results.end(), {{"gradient of the input", inputGradient_},
                                 {"gradient of the gate", gateGradient_},
                                 {"gradient of w1", w1Gradient_},
                                 {"gradient of b1", b1Gradient_},
                                 {"gradient of w2", w2Gradient_},
                                 {"gradient of b2", b2Gradient_}});
  return results;
}

}  // namespace moeccl::perf::layers
