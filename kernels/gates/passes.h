// What lanes of a GPU do with tokens before and after their rule. Nothing here needs a GPU.
#pragma once

#include "kernels/gates/renormalize.h"
#include "kernels/gates/rules.h"
#include "kernels/gates/token_rows.h"

namespace moeccl::gates {

// A pass over a part of a batch.
struct GatePass {
  Config config;
  TokenRows rows;
  std::int32_t width;
  std::int64_t perToken;
  const double* logits;
  const double* bias;
  bool isRandom;
  Random random;
  Kept<float> kept = {};  // of the tokens, backward, where the gate renormalizes

  MOECCL_DEVICE Token token(std::int64_t index) const {
    return {logits + (index - rows.first) * perToken, index, isRandom ? &random : nullptr, bias};
  }
};

// Memory for one token: a rule's scratch, weights [width], and gradients of logits
// [logitsPerToken], which choosing does not need.
struct TokenMemory {
  Scratch scratch;
  double *weights, *dLogits;
};

// How memory of some tokens is laid out, one after another.
struct TokenMemories {
  std::int64_t ruleDoubles, doubles, bytes;  // of each
  std::int32_t width;

  MOECCL_DEVICE TokenMemory of(std::byte* memories, std::int64_t number) const {
    std::byte* const memory = memories + number * bytes;
    auto* const first = reinterpret_cast<double*>(memory);
    return {{first, reinterpret_cast<std::int32_t*>(first + doubles)},
            first + ruleDoubles,
            first + ruleDoubles + width};
  }
};

template <typename Rule>
TokenMemories tokenMemories(const Config& config, bool differentiates) {
  const std::int64_t rule = Rule::doubles(config);
  const std::int64_t doubles = rule + width(config) + (differentiates ? logitsPerToken(config) : 0);
  const std::int64_t pairsOfInts = (Rule::ints(config) + 1) / 2;
  return {rule, doubles, 8 * (doubles + pairsOfInts), width(config)};
}

// Decides for a token.
template <typename Rule, typename Lanes>
MOECCL_DEVICE void chooseToken(const Lanes& lanes, const GatePass& pass, const TokenMemory& memory,
                               std::int64_t index, std::int32_t* chosen, float* weights) {
  const std::int64_t at = (index - pass.rows.first) * pass.width;
  Rule::choose(lanes, pass.config, pass.token(index), memory.scratch, chosen + at, memory.weights);
  each(lanes, pass.width,
       [&](std::int64_t c) { weights[at + c] = static_cast<float>(memory.weights[c]); });
}

// Adds to sums [3][experts] what chooseToken has left of the token. Nothing is synchronised.
template <typename Rule, typename Lanes>
MOECCL_DEVICE void addToken(const Lanes& lanes, const GatePass& pass, const TokenMemory& memory,
                            std::int64_t index, const std::int32_t* chosen, double* sums) {
  const std::int32_t* const choices = chosen + (index - pass.rows.first) * pass.width;
  Rule::addTerms(lanes, pass.config, pass.token(index), memory.scratch, choices, memory.weights,
                 sums + pass.config.experts);
  if (pass.config.kind == Kind::expertChoice) return;
  for (std::int32_t c = 0; c < pass.width; ++c)
    if (choices[c] >= 0 && owns(lanes, choices[c])) sums[choices[c]] += 1;
}

// Sets a token's gradients of logits, of the gate [experts] and with noisy of the noise [experts].
template <typename Rule, typename Lanes>
MOECCL_DEVICE void differentiateToken(const Lanes& lanes, const GatePass& pass,
                                      const TokenMemory& memory, std::int64_t index,
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
  if (const double sum = renormalizedSum(pass.config); sum > 0) {
    if (lanes.index() == 0)
      renormalizeTokenBackward(sum, pass.width, pass.kept.slots + at, pass.kept.weights + at,
                               pass.kept.factors[token], memory.weights);
    lanes.sync();
  }
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
