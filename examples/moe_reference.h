// A Mixture-of-Experts layer in plain loops, to hold the real one against. It computes what
// moeccl/moe.h defines and shares nothing with the library: one process, the tokens of one MP group
// at a time, everything in double. Numbers that the real one gets as float32 must be such here too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "examples/moe_reference_gates.h"
#include "moeccl/moe.h"

namespace moe_reference {

// A whole layer, not a rank's part of it. Matrices are row-major.
struct Layer {
  moecclMoeConfig_t config = MOECCL_MOE_CONFIG_INITIALIZER;
  int nMp = 1;                // ranks per MP group; they decide how tokens are padded
  std::vector<double> gate;   // [M][E]
  std::vector<double> noise;  // [M][E] with NoisyTopK, else empty
  std::vector<double> bias;   // [E] with Sigmoid; empty: zero
  std::vector<double> w1;     // [E][M][innerOf(H)]
  std::vector<double> b1;     // [E][innerOf(H)]; empty: zero
  std::vector<double> w2;     // [E][H][M]
  std::vector<double> b2;     // [E][M]; empty: zero
  // Of the residual branch, whose hidden size R is config.residual; empty without one.
  std::vector<double> residualW1;  // [M][innerOf(R)]
  std::vector<double> residualB1;  // [innerOf(R)]; empty: zero
  std::vector<double> residualW2;  // [R][M]
  std::vector<double> residualB2;  // [M]; empty: zero
};

// Columns of a first matrix: with swiglu the gate's and those that it multiplies.
std::int64_t innerOf(const moecclMoeConfig_t& config, std::int64_t hidden);

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
Result forward(const Layer& layer, const double* input, const Chance& chance = {});

// As moecclMoeGradients_t, of a whole layer and one MP group.
struct Gradients {
  std::vector<double> input;  // [tokens][M]
  std::vector<double> gate, noise, w1, b1, w2, b2;
  std::vector<double> residualW1, residualB1, residualW2, residualB2;
  // How far rounding may have moved the gate's, in units of the precision of double.
  std::vector<double> gateError, noiseError;
};

// The gradients of (the sum of outputGradient [tokens][M] times the output) plus auxiliaryLossScale
// times the auxiliary loss.
Gradients backward(const Layer& layer, const double* input, const double* outputGradient,
                   double auxiliaryLossScale, const Chance& chance = {});

// Numbers as the library takes and gives them: float16, bfloat16, float32 or float64.
using Elements = std::vector<std::byte>;
Elements encode(moecclDataType_t datatype, const std::vector<double>& numbers);
std::vector<double> decode(moecclDataType_t datatype, const Elements& elements);

// The part of the weights that a rank hands to moecclMoeLayerSetWeights, in the layer's datatype;
// `weights` points into them, and to the layer's bias.
struct Shard {
  Elements gate, noise, w1, b1, w2, b2;
  Elements residualW1, residualB1, residualW2, residualB2;
  moecclMoeWeights_t weights = MOECCL_MOE_WEIGHTS_INITIALIZER;
};
Shard shardOf(const Layer& layer, const moecclMoeShapes_t& shapes);

// The same part of gradients, of which every rank of the MP group has all but those of experts
// whole.
Gradients shardOf(const Layer& layer, const moecclMoeShapes_t& shapes, const Gradients& whole);

// The largest |actual - expected| over as many values, divided by the largest |expected| (by 1 when
// all are 0). NaN when a value is NaN.
double largestError(const std::vector<double>& actual, const std::vector<double>& expected);

}  // namespace moe_reference
