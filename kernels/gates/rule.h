// What sets one gate apart from the others. One file per gate has its rule, all in double: nothing
// but what happens to one token, and the loss.
//
// To add a gate: its Kind and its fields in gate.h, what they must be in config.cc, a file with its
// rule, which is made below and in gate.cc's ruleOf, and plain loops in tests/kernels/gates_plain.cc,
// by which all tests of kernels know it. For the layer: its place in moecclMoeGate_t, in
// src/moe/gate_config.cc, and in the reference, examples/moe_reference_gates.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "kernels/gates/gate.h"

namespace moeccl::gates {

// What a rule may know about a token.
struct Token {
  const double* logits;  // [logitsPerToken]: input x gate, then where there is one input x noise
  std::int64_t index;    // in the batch
  const std::optional<Random>& random;
  const double* bias;  // [experts] or null
};

class Rule {
 public:
  explicit Rule(const Config& config) : config_(config) {}
  virtual ~Rule() = default;

  // Sets chosen and weights [width], adds to terms [2][experts]: what the loss is made of.
  virtual void choose(const Token& token, std::int32_t* chosen, double* weights, double* terms) = 0;
  // Adds to dLogits [logitsPerToken]. dWeights [width] is 0 where nothing is chosen; dTerms [2]
  // [experts].
  virtual void differentiate(const Token& token, const std::int32_t* chosen, const double* dWeights,
                             const double* dTerms, double* dLogits) = 0;
  // terms, dTerms [sections][2][experts]: sets dTerms to the gradient of scale * loss. There is at
  // least one token.
  virtual double loss(const double* terms, double scale, double* dTerms) const = 0;

 protected:
  const Config config_;
};

// The loss of all gates but one: factor * sum over experts of count x sum of probabilities, from
// terms [2][experts]. Counts have no gradient.
inline double countsTimesProbabilities(const double* terms, std::int32_t experts, double factor,
                                       double scale, double* dTerms) {
  double sum = 0;
  for (std::int32_t e = 0; e < experts; ++e) {
    sum += terms[e] * terms[experts + e];
    dTerms[e] = 0;
    dTerms[experts + e] = scale * factor * terms[e];
  }
  return factor * sum;
}

std::unique_ptr<Rule> softmaxRule(const Config& config);
std::unique_ptr<Rule> noisyRule(const Config& config);
std::unique_ptr<Rule> gshardRule(const Config& config);
std::unique_ptr<Rule> expertChoiceRule(const Config& config);
std::unique_ptr<Rule> sigmoidRule(const Config& config);

// The second half of expertChoice, as Gate::place; keys and order [capacityTokens] are scratch.
template <typename Real>
void chooseTokens(const Config& config, std::int64_t tokens, std::int64_t groups, double* keys,
                  std::int64_t* order, std::int32_t* chosen, Real* weights, std::int64_t* used,
                  std::int64_t* slots);

}  // namespace moeccl::gates
