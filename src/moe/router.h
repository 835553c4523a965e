// Gates the tokens of a batch, or of one of its parts, and moves them to the places of their
// experts and back.
#pragma once

#include <algorithm>
#include <cstdint>
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
  void clear(int part) { std::fill_n(row(part), rowSize(), 0.0); }

 private:
  std::int64_t experts_;
  std::vector<double> values_;
};

class Router {
 public:
  // For up to `tokens` tokens at a time. `keeps`: what the functions for backward need.
  Router(const LayerShape& shape, std::int64_t tokens, bool keeps);

  // Routes a batch, input [tokens][embedding], without padding, and sets its rows in `sums`.
  void routeBatch(const float* gate, const float* input, BatchSums& sums);
  // Routes a chunk of a part; `input` begins with its first token. The first chunk sets the row of the
  // part in `sums`, later ones add to it.
  void routeChunk(const float* gate, const float* input, int part, std::int64_t chunk,
                  BatchSums& sums);

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
  // Gates `count` tokens more.
  void gateMore(const float* gate, const float* input, std::int64_t count, const GateSums& sums);
  // Gives places in `groups` capacity groups to what has been gated, and adds those given to `kept`.
  void place(std::int64_t groups, double* kept);

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
