// What sets one gate apart from the others. One header per gate has its rule, all in double:
// nothing but what happens to one token, and the loss. A rule is code for several lanes that work
// on a token together (kernels/lanes.h): one on a CPU, a warp on a GPU. Its members, all static:
//
//   doubles(config), ints(config)   scratch
//   choose(lanes, config, token, scratch, chosen, weights)
//       sets chosen and weights [width]
//   addTerms(lanes, config, token, scratch, chosen, weights, terms)
//       adds to terms [2][experts], what the loss is made of, from what choose has left. The lanes
//       may be others, more of them, and nothing is synchronised
//   differentiate(lanes, config, token, scratch, chosen, dWeights, dTerms, dLogits)
//       adds to dLogits [logitsPerToken]. dWeights [width] is 0 where nothing is chosen; dTerms
//       [2][experts]
//   loss(lanes, config, terms, scale, dTerms)
//       terms, dTerms [sections][2][experts]: sets dTerms to the gradient of scale * loss, and
//       returns the loss. There is at least one token
//
// What a rule writes, all lanes may read behind it, but terms. Expert e of terms and of dLogits is
// its owner's.
//
// To add a gate: its Kind and its fields in gate.h, what they must be in config.cc, a header with
// its rule, which is named in withRule (rules.h), its place in moecclMoeGate_t and in
// src/model/gate_config.cc, and plain loops in the reference, examples/moe_reference_gates.cc. All
// tests of kernels know it by everyConfig (tests/kernels/gate_pass.cc), those against the reference
// by configOf (gates_reference.cc) too.
#pragma once

#include <cstdint>

#include "kernels/gates/gate.h"
#include "kernels/lanes.h"

namespace moeccl::gates {

// What a rule may know about a token.
struct Token {
  const double* logits;  // [logitsPerToken]: input x gate, then where there is one input x noise
  std::int64_t index;    // in the batch
  const Random* random;  // null: nothing is random
  const double* bias;    // [experts] or null
};

inline bool hasJitter(const Config& config) {
  return config.kind == Kind::softmax && config.jitter > 0;
}

// The loss is made of the terms of one section of the batch, or of several: sequences.
MOECCL_DEVICE inline std::int64_t sections(const Config& config) {
  if (config.kind != Kind::sigmoid || config.sequenceTokens == 0 || config.batchTokens == 0)
    return 1;
  return (config.batchTokens - 1) / config.sequenceTokens + 1;
}

// Where the terms of a token's section begin in the sums.
MOECCL_DEVICE inline std::int64_t termsAt(const Config& config, std::int64_t token) {
  const std::int64_t section = sections(config) == 1 ? 0 : token / config.sequenceTokens;
  return (2 + 2 * section) * config.experts;
}

struct Scratch {
  double* doubles;
  std::int32_t* ints;
};

// The loss of all gates but one: factor * sum over experts of count x sum of probabilities, from
// terms [2][experts]. Counts have no gradient.
template <typename Lanes>
MOECCL_DEVICE double countsTimesProbabilities(const Lanes& lanes, const double* terms,
                                              std::int32_t experts, double factor, double scale,
                                              double* dTerms) {
  double sum = 0;
  each(lanes, experts, [&](std::int64_t e) {
    sum += terms[e] * terms[experts + e];
    dTerms[e] = 0;
    dTerms[experts + e] = scale * factor * terms[e];
  });
  return factor * lanes.sum(sum);
}

// The second half of expertChoice, as Gate::place; keys and order [capacityTokens] are scratch.
template <typename Real>
void chooseTokens(const Config& config, std::int64_t tokens, std::int64_t groups, double* keys,
                  std::int64_t* order, std::int32_t* chosen, Real* weights, std::int64_t* used,
                  std::int64_t* slots);

}  // namespace moeccl::gates
