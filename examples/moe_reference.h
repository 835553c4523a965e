// A Mixture-of-Experts layer in plain loops, to hold the real one against. It computes what
// moeccl/moe.h defines and shares nothing with the library: one process, the tokens of one MP group
// at a time, every sum in double.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "examples/moe_reference_gates.h"
#include "moeccl/moe.h"

namespace moe_reference {

// A whole layer, not a rank's part of it. Matrices are row-major.
struct Layer {
  moecclMoeConfig_t config = MOECCL_MOE_CONFIG_INITIALIZER;
  int nMp = 1;               // ranks per MP group; they decide how tokens are padded
  std::vector<float> gate;   // [M][E]
  std::vector<float> noise;  // [M][E] with NoisyTopK, else empty
  std::vector<double> bias;  // [E] with Sigmoid; empty: zero
  std::vector<float> w1;     // [E][M][H]
  std::vector<float> b1;     // [E][H]; empty: zero
  std::vector<float> w2;     // [E][H][M]
  std::vector<float> b2;     // [E][M]; empty: zero
  // Of the residual branch, whose hidden size R is config.residual; empty without one.
  std::vector<float> residualW1;  // [M][R]
  std::vector<float> residualB1;  // [R]; empty: zero
  std::vector<float> residualW2;  // [R][M]
  std::vector<float> residualB2;  // [M]; empty: zero
};

struct Result {
  std::vector<double> output;           // [tokens][M]
  std::vector<std::int64_t> chosen;     // [tokens][topK], with expert choice [E]: experts; -1: none
  std::vector<std::int64_t> assigned;   // [E] choices per expert, before capacity
  std::vector<std::int64_t> kept;       // [E] choices per expert that found a place
  std::vector<std::int64_t> placeless;  // choices without a place: token * topK + choice, ascending
  std::int64_t capacity = 0;            // places per expert; dropless: 0
  double auxiliaryLoss = 0;
};

// The forward pass over the tokens of one MP group, input [tokens][M].
Result forward(const Layer& layer, const float* input, const Chance& chance = {});

// As moecclMoeGradients_t, of a whole layer and one MP group.
struct Gradients {
  std::vector<double> input;  // [tokens][M]
  std::vector<double> gate, noise, w1, b1, w2, b2;
  std::vector<double> residualW1, residualB1, residualW2, residualB2;
};

// The gradients of (the sum of outputGradient [tokens][M] times the output) plus auxiliaryLossScale times
// the auxiliary loss.
Gradients backward(const Layer& layer, const float* input, const float* outputGradient,
                   double auxiliaryLossScale, const Chance& chance = {});

// The part of the weights that a rank hands to moecclMoeLayerSetWeights; `weights` points into the
// vectors.
struct Shard {
  std::vector<float> w1, b1, w2, b2;
  moecclMoeWeights_t weights = MOECCL_MOE_WEIGHTS_INITIALIZER;
};
Shard shardOf(const Layer& layer, const moecclMoeShapes_t& shapes);

// The same part of gradients, of which every rank of the MP group has all but those of experts whole.
Gradients shardOf(const Layer& layer, const moecclMoeShapes_t& shapes, const Gradients& whole);

// The largest |actual - expected| over `count` values, divided by the largest |expected| (by 1 when
// all are 0). NaN when a value is NaN.
double largestError(const float* actual, const double* expected, std::int64_t count);

}  // namespace moe_reference
