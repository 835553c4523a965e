// What all candidates of a layer have in common: weights, tokens, and room for results.
#pragma once

#include <moeccl/model.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "perf/perf/layer_space.h"

namespace moeccl::perf::layers {

struct ResultArray {
  const char* name;
  std::span<const float> values;
};

// The caller's part of the weights, the tokens of its MP group, and what becomes of them. Values
// are the same in every run. With moecclPassForward there are no gradients.
class Data {
 public:
  Data(const Layer& layer, const moecclMoeShapes_t& shapes, moecclPass_t pass, int rank,
       std::uint64_t seed);
  Data(const Data&) = delete;
  Data& operator=(const Data&) = delete;

  const moecclMoeWeights_t& weights() const { return weights_; }
  const moecclMoeGradients_t& gradients() const { return gradients_; }
  const float* input() const { return input_.data(); }
  float* output() { return output_.data(); }
  const float* outputGradient() const { return outputGradient_.data(); }
  float* inputGradient() { return inputGradient_.data(); }

  // Before a pass whose results matter: NaN where it sets them, 0 where it adds.
  void prepare();
  std::vector<ResultArray> results() const;

 private:
  std::vector<float> gate_, w1_, b1_, w2_, b2_, input_, output_;
  std::vector<float> outputGradient_, inputGradient_;
  std::vector<float> gateGradient_, w1Gradient_, b1Gradient_, w2Gradient_, b2Gradient_;
  moecclMoeWeights_t weights_ = MOECCL_MOE_WEIGHTS_INITIALIZER;  // points into the vectors
  moecclMoeGradients_t gradients_ = MOECCL_MOE_GRADIENTS_INITIALIZER;
};

}  // namespace moeccl::perf::layers
