// What a warp of a GPU does with tokens before and after their rule. Nothing here needs a GPU, so that it is
// tested on hosts.
#pragma once

#include "kernels/gates/rules.h"
#include "kernels/gates/token_rows.h"

namespace moeccl::gates {

// A pass over a part of a batch. Memory of a warp: doubles and ints of its rule, weights [width] and gradients
// of logits [logitsPerToken].
struct GatePass {
  Config config;
  TokenRows rows;
  std::int32_t width;
  std::int64_t perToken;
  const double* logits;
  const double* bias;
  bool isRandom;
  Random random;

  MOECCL_DEVICE Token token(std::int64_t index) const {
    return {logits + (index - rows.first) * perToken, index, isRandom ? &random : nullptr, bias};
  }
};

struct WarpMemory {
  Scratch scratch;
  double *weights, *dLogits;
};

template <typename Rule>
std::int64_t warpDoubles(const Config& config) {
  return Rule::doubles(config) + width(config) + logitsPerToken(config);
}

// Decides for the tokens of a row; sets its sums [3][experts].
template <typename Rule, typename Lanes>
MOECCL_DEVICE void chooseRow(const Lanes& lanes, const GatePass& pass, const WarpMemory& memory,
                             std::int64_t row, std::int32_t* chosen, float* weights, double* sums) {
  const std::int64_t experts = pass.config.experts;
  each(lanes, experts, [&](std::int64_t e) {
    for (int i = 0; i < 3; ++i) sums[i * experts + e] = 0;
  });
  for (std::int64_t index = pass.rows.begin(row); index < pass.rows.end(row); ++index) {
    const std::int64_t at = (index - pass.rows.first) * pass.width;
    Rule::choose(lanes, pass.config, pass.token(index), memory.scratch, chosen + at, memory.weights,
                 sums + experts);
    each(lanes, pass.width,
         [&](std::int64_t c) { weights[at + c] = static_cast<float>(memory.weights[c]); });
    if (pass.config.kind != Kind::expertChoice)
      for (std::int32_t c = 0; c < pass.width; ++c) {
        const std::int32_t expert = chosen[at + c];
        if (expert >= 0 && owns(lanes, expert)) sums[expert] += 1;
      }
    lanes.sync();
  }
}

// Sets a token's gradients of logits, of the gate [experts] and with noisy of the noise [experts].
template <typename Rule, typename Lanes>
MOECCL_DEVICE void differentiateToken(const Lanes& lanes, const GatePass& pass,
                                      const WarpMemory& memory, std::int64_t index,
                                      const std::int32_t* chosen, const float* dWeights,
                                      const double* dSums, float* dGate, float* dNoise) {
  const std::int64_t experts = pass.config.experts, token = index - pass.rows.first;
  const std::int64_t at = token * pass.width;
  each(lanes, pass.width, [&](std::int64_t c) {
    memory.weights[c] = chosen[at + c] < 0 ? 0.0 : static_cast<double>(dWeights[at + c]);
  });
  each(lanes, experts, [&](std::int64_t e) {
    for (std::int64_t i = e; i < pass.perToken; i += experts) memory.dLogits[i] = 0;
  });
  lanes.sync();
  Rule::differentiate(lanes, pass.config, pass.token(index), memory.scratch, chosen + at,
                      memory.weights, dSums + termsAt(pass.config, index), memory.dLogits);
  each(lanes, experts, [&](std::int64_t e) {
    dGate[token * experts + e] = static_cast<float>(memory.dLogits[e]);
    if (pass.perToken > experts)
      dNoise[token * experts + e] = static_cast<float>(memory.dLogits[experts + e]);
  });
  lanes.sync();
}

}  // namespace moeccl::gates
