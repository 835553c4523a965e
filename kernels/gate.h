// The gate of a Mixture-of-Experts layer: which experts a token goes to, and with what weight. All
// matrices are row-major.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/capacity.h"

namespace moeccl {

// Sums over tokens, [experts] each; counts are whole numbers.
struct GateSums {
  double* probability;  // of every expert, over all tokens
  double* first;        // tokens whose first choice it is
  double* assigned;     // choices of it
};

struct GateShape {
  std::int64_t embedding;
  std::int32_t experts;
  std::int32_t choices;  // per token, at most `experts`
};

// Doubles of workspace that chooseExperts needs, whatever the number of tokens.
std::int64_t gateWorkspace(const GateShape& shape);

// For each token of input [tokens][embedding]: logits = token x gate [embedding][experts], and from
// their softmax chosen [tokens][choices], the experts of the largest logits in falling order, equal
// ones by rising number, and weights [tokens][choices]: with one choice its probability, with
// several their probabilities divided by their sum. Adds to `sums`. probabilities [tokens][experts] is
// for softmaxTopKBackward; null: not kept. NaN logits count as the
// smallest; their token's weights are NaN.
//
// A token's results depend on that token and the gate alone, to the last bit, and not on the tokens
// around it: a product of two floats is exact in double, and the sums run in the order of the
// embedding, one rounding per term with fused multiply-add as without. So schedules that gate
// different parts of a batch agree on every choice.
void chooseExperts(const GateShape& shape, const float* input, const float* gate,
                   std::int64_t tokens, std::span<double> workspace, std::int32_t* chosen,
                   float* weights, float* probabilities, const GateSums& sums);

}  // namespace moeccl
