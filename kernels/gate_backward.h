// The gradients of a gate, in two steps, so that gates differ in the first alone:
//
//     gradients of choices' weights, and of probabilities
//       | how the gate makes them of its logits (softmaxTopKBackward)
//     gradients of logits
//       | logits = input gate (gateProductBackward)
//     gradients of the gate, and of the input
//
// All matrices are row-major.
#pragma once

#include <cstdint>

#include "kernels/gate.h"

namespace moeccl {

// What chooseExperts made of some tokens.
struct GateChoices {
  const std::int32_t* chosen;  // [tokens][choices]
  const float* weights;        // [tokens][choices]
  const float* probabilities;  // [tokens][experts]
  std::int64_t tokens;
};

// logitGradients [tokens][experts] of chooseExperts, from weightGradients [tokens][choices], where those
// of dropped choices are 0, and probabilityGradients [experts], the same for every token: what a loss of
// the mean probabilities adds. Sums run in double.
void softmaxTopKBackward(const GateShape& shape, const GateChoices& choices,
                         const float* weightGradients, const double* probabilityGradients,
                         float* logitGradients);

// logits = input gate, by BLAS: adds to gateGradient [embedding][experts], unless it is null, and to
// inputGradient [tokens][embedding].
void gateProductBackward(const GateShape& shape, const float* input, const float* gate,
                         const float* logitGradients, std::int64_t tokens, float* gateGradient,
                         float* inputGradient);

}  // namespace moeccl
