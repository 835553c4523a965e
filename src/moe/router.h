// Gates the tokens of a batch, or of one of its parts, and moves them to the places of their
// experts and back.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/gate.h"
#include "kernels/gate_backward.h"
#include "kernels/permute.h"
#include "src/moe/layer_shape.h"

namespace moeccl {

// What there is to say about a batch: per part one row of doubles, [4][experts]: sums of
// probabilities, first choices, choices, and choices that found a place. Counts are whole numbers.
// Rows of different parts come from different ranks under S1, and are added in the order of the
// parts under every schedule, so that the loss is the same to the last bit.
class BatchSums {
 public:
  explicit BatchSums(const LayerShape& shape);

  std::int64_t rowSize() const { return 4 * experts_; }
  double* rows() { return values_.data(); }
  double* row(int part) { return values_.data() + part * rowSize(); }
  GateSums gateSums(int part) {
    return {row(part), row(part) + experts_, row(part) + 2 * experts_};
  }
  double* kept(int part) { return row(part) + 3 * experts_; }

 private:
  std::int64_t experts_;
  std::vector<double> values_;
};

class Router {
 public:
  // For up to `parts` parts at a time. `keeps`: what the functions for backward need.
  Router(const LayerShape& shape, int parts, bool keeps);

  // Routes parts firstPart to firstPart + parts - 1 of a batch; `input` begins with the first of
  // their tokens, without padding. Sets the rows of these parts in `sums`. Capacity groups must not
  // cross the ends.
  void route(const float* gate, const float* input, int firstPart, int parts, BatchSums& sums);

  // Tokens that were routed, without padding.
  std::int64_t tokens() const { return tokens_; }
  // As scatterTokens and combineTokens; places without a token are zeroed.
  void scatter(const float* input, std::int64_t expertStride, float* rows) const;
  void combine(const float* rows, std::int64_t expertStride, float* output) const;

  // The same backward, of the last route. combineBackward keeps the gradients of the weights;
  // scatterBackward sets the gradient of the input, to which gateBackward adds what comes by the gate.
  // probabilityGradients [experts]: as of softmaxTopKBackward. gateGradient is added to; null: not
  // wanted.
  void combineBackward(const float* rows, const float* outputGradient, std::int64_t expertStride,
                       float* rowGradients);
  void scatterBackward(const float* rowGradients, std::int64_t expertStride,
                       float* inputGradient) const;
  void gateBackward(const float* gate, const double* probabilityGradients, float* gateGradient,
                    float* inputGradient);

  // For kernels that take them as they are: the choices, what was routed, and what combineBackward
  // would set.
  Choices choices() const {
    return {chosen_.data(), slots_.data(), weights_.data(), tokens_, shape_.choices};
  }

  const float* input() const { return input_.data(); }
  float* weightGradients() { return weightGradients_.data(); }

 private:
  const LayerShape shape_;
  const bool keeps_;
  std::int64_t tokens_ = 0, groups_ = 0;
  std::vector<std::int32_t> chosen_;  // [tokens][choices], as are weights and slots
  std::vector<float> weights_;
  std::vector<std::int64_t> slots_;
  std::vector<std::int64_t> used_;  // [groups][experts]
  std::vector<double> workspace_;
  std::vector<float> input_;                           // [tokens][embedding]
  std::vector<float> probabilities_, logitGradients_;  // [tokens][experts]
  std::vector<float> weightGradients_;                 // [tokens][choices]
};

// The sums of all parts as moecclMoeStats_t reports them.
struct BatchStats {
  double auxiliaryLoss = 0;
  std::int64_t droppedChoices = 0;
  std::vector<std::int64_t> first, assigned, kept;  // [experts], sized by the owner
};

void summarise(const LayerShape& shape, BatchSums& sums, BatchStats* stats);

// gradients [experts] = those of scale * the auxiliary loss by the probabilities of any one token.
void auxiliaryLossBackward(const LayerShape& shape, const BatchStats& stats, double scale,
                           double* gradients);

}  // namespace moeccl
