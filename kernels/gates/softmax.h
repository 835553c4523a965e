// Softmax top-k. With one choice it is Switch's gate (Fedus et al. 2021, section 2.1), with several
// their probabilities are divided by their sum, as in GShard.
//
//   p = softmax(logits);  chosen: the k largest logits;  weight: k = 1: p, k > 1: p / sum of the k
//   loss = E sum_e f_e P_e        (Switch, equations 4 to 6, where alpha is the caller's scale)
//     f: share of tokens whose first choice e is, before capacity    P: mean of p_e
#pragma once

#include "kernels/gates/parts.h"
#include "kernels/gates/rule.h"

namespace moeccl::gates {

struct SoftmaxRule {
  static std::int64_t doubles(const Config& config) {
    return 2 * static_cast<std::int64_t>(config.experts);
  }
  static std::int64_t ints(const Config&) { return 0; }

  template <typename Lanes>
  MOECCL_DEVICE static void choose(const Lanes& lanes, const Config& config, const Token& token,
                                   const Scratch& scratch, std::int32_t* chosen, double* weights) {
    double* const probabilities = scratch.doubles;
    double* const keys = probabilities + config.experts;
    softmax(lanes, token.logits, config.experts, probabilities);
    each(lanes, config.experts, [&](std::int64_t e) { keys[e] = comparable(token.logits[e]); });
    lanes.sync();
    largest(lanes, keys, config.experts, config.choices, chosen);
    const double sum = weightSum(config, probabilities, chosen);
    each(lanes, config.choices,
         [&](std::int64_t c) { weights[c] = probabilities[chosen[c]] / sum; });
    lanes.sync();
  }

  template <typename Lanes>
  MOECCL_DEVICE static void addTerms(const Lanes& lanes, const Config& config, const Token&,
                                     const Scratch& scratch, const std::int32_t* chosen,
                                     const double*, double* terms) {
    each(lanes, config.experts,
         [&](std::int64_t e) { terms[config.experts + e] += scratch.doubles[e]; });
    if (owns(lanes, chosen[0])) terms[chosen[0]] += 1;
  }

  template <typename Lanes>
  MOECCL_DEVICE static void differentiate(const Lanes& lanes, const Config& config,
                                          const Token& token, const Scratch& scratch,
                                          const std::int32_t* chosen, const double* dWeights,
                                          const double* dTerms, double* dLogits) {
    double* const probabilities = scratch.doubles;
    double* const dProbabilities = probabilities + config.experts;
    softmax(lanes, token.logits, config.experts, probabilities);
    each(lanes, config.experts,
         [&](std::int64_t e) { dProbabilities[e] = dTerms[config.experts + e]; });
    lanes.sync();
    if (config.choices == 1) {
      if (owns(lanes, chosen[0])) dProbabilities[chosen[0]] += dWeights[0];
    } else {  // the weights are the softmax of the chosen logits
      const double sum = weightSum(config, probabilities, chosen);
      double mean = 0;
      for (std::int32_t c = 0; c < config.choices; ++c)
        mean += probabilities[chosen[c]] / sum * dWeights[c];
      for (std::int32_t c = 0; c < config.choices; ++c)
        if (owns(lanes, chosen[c]))
          dLogits[chosen[c]] += probabilities[chosen[c]] / sum * (dWeights[c] - mean);
    }
    softmaxBackward(lanes, probabilities, dProbabilities, config.experts, dLogits);
    lanes.sync();
  }

  template <typename Lanes>
  MOECCL_DEVICE static double loss(const Lanes& lanes, const Config& config, const double* terms,
                                   double scale, double* dTerms) {
    const double tokens = static_cast<double>(config.batchTokens);
    return countsTimesProbabilities(lanes, terms, config.experts,
                                    config.experts / (tokens * tokens), scale, dTerms);
  }

 private:
  MOECCL_DEVICE static double weightSum(const Config& config, const double* probabilities,
                                        const std::int32_t* chosen) {
    if (config.choices == 1) return 1;
    double sum = 0;
    for (std::int32_t c = 0; c < config.choices; ++c) sum += probabilities[chosen[c]];
    return sum;
  }
};

}  // namespace moeccl::gates
