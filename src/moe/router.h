// Gates the tokens of a batch, or of one of its parts, and moves them to the places of their
// experts and back.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/gates/gate.h"
#include "kernels/permute.h"
#include "src/moe/balance.h"
#include "src/moe/layer_shape.h"

namespace moeccl {

// As in moecclMoeWeights_t.
using GateWeights = gates::Parameters<float>;

// As in moecclMoeGradients_t; null: not wanted.
struct GateGradients {
  float* gate = nullptr;
  float* noise = nullptr;
};

class Router {
 public:
  // For up to `tokens` tokens at a time. `keeps`: what the functions for backward need.
  Router(const LayerShape& shape, std::int64_t tokens, bool keeps);

  // Routes a batch, input [tokens][embedding], without padding, and sets its rows in `sums`. draw: the
  // batch's; without, nothing is random.
  void routeBatch(const GateWeights& gate, const std::optional<gates::Draw>& draw,
                  const float* input, BatchSums& sums);
  // Routes a chunk of a part; `input` begins with its first token. The first chunk sets the row of the
  // part in `sums`, later ones add to it.
  void routeChunk(const GateWeights& gate, const std::optional<gates::Draw>& draw,
                  const float* input, int part, std::int64_t chunk, BatchSums& sums);

  // As scatterTokens and combineTokens; places without a token are zeroed.
  void scatter(const float* input, std::int64_t expertStride, float* rows) const;
  void combine(const float* rows, std::int64_t expertStride, float* output) const;

  // The same backward, of the last route. combineBackward keeps the gradients of the weights;
  // scatterBackward sets the gradient of the input, to which gateBackward adds what comes by the gate.
  // sumGradients: as of BatchStats::lossBackward. gradients are added to.
  void combineBackward(const float* rows, const float* outputGradient, std::int64_t expertStride,
                       float* rowGradients);
  void scatterBackward(const float* rowGradients, std::int64_t expertStride,
                       float* inputGradient) const;
  void gateBackward(const GateWeights& gate, const double* sumGradients,
                    const GateGradients& gradients, float* inputGradient);

  // For kernels that take them as they are: the choices, what was routed, and what combineBackward
  // would set.
  Choices choices() const {
    return {chosen_.data(), slots_.data(), weights_.data(), tokens_, shape_.choices};
  }
  const float* input() const { return input_.data(); }
  float* weightGradients() { return weightGradients_.data(); }

 private:
  // Before the tokens from firstToken on are gated.
  void begin(std::int64_t firstToken, const std::optional<gates::Draw>& draw);
  // Gates `count` tokens more.
  void gateMore(const GateWeights& gate, const float* input, std::int64_t count, double* sums);
  // Gives places in `groups` capacity groups to what has been gated, and adds those given to `sums`.
  void place(std::int64_t groups, double* sums);

  const LayerShape shape_;
  const bool keeps_;
  gates::Gate<float> gate_;
  std::int64_t tokens_ = 0, firstToken_ = 0, groups_ = 0;
  std::optional<gates::Draw> draw_;
  std::vector<double> logits_;        // [tokens][logitsPerToken], or of one part if not kept
  std::vector<std::int32_t> chosen_;  // [tokens][choices], as are weights and slots
  std::vector<float> weights_;
  std::vector<std::int64_t> slots_;
  std::vector<std::int64_t> used_;      // [groups][experts]
  std::vector<float> input_;            // [tokens][embedding]
  std::vector<float> weightGradients_;  // [tokens][choices]
};

}  // namespace moeccl
