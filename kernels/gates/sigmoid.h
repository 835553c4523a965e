// Sigmoid affinities, balanced by a bias instead of by a loss, and choices from few groups of
// experts (DeepSeek-V3, sections 2.1.2 and 2.1.3).
//
//   s = sigmoid(logits)                                                      (equation 15)
//   A group's score is the sum of the two largest s + bias in it; the topGroups best are kept. (The
//   paper sums K_r / M of them, which is two in the model that it describes.)
//   chosen: the k largest s + bias in kept groups                            (16)
//   weight: routingScale s / sum of the k s, without the bias                (13)
//   loss = mean over sequences of sum_e f_e P_e                              (17 to 20)
//     f: E / (k T) choices of e    P: mean of s_e / sum of all s    T: tokens of the sequence
//
// Logits may be so small that all s round to zero; their logarithms do not, so quotients of s are
// made as softmax(log s).
#pragma once

#include "kernels/gates/parts.h"
#include "kernels/gates/rule.h"

namespace moeccl::gates {

struct SigmoidRule {
  static std::int64_t doubles(const Config& config) {
    return 3 * static_cast<std::int64_t>(config.experts) + config.expertGroups;
  }
  static std::int64_t ints(const Config& config) { return 2 + config.topGroups; }

  template <typename Lanes>
  MOECCL_DEVICE static void choose(const Lanes& lanes, const Config& config, const Token& token,
                                   const Scratch& scratch, std::int32_t* chosen, double* weights) {
    double* const keys = scratch.doubles;
    double* const logAffinities = keys + config.experts;
    double* const shares = logAffinities + config.experts;
    each(lanes, config.experts, [&](std::int64_t e) {
      keys[e] =
          comparable(sigmoid(token.logits[e]) + (token.bias == nullptr ? 0.0 : token.bias[e]));
    });
    lanes.sync();
    excludeGroups(lanes, config, scratch, keys, shares + config.experts);
    largest(lanes, keys, config.experts, config.choices, chosen);
    takeLogarithms(lanes, config, token, logAffinities);
    sharesOfChosen(lanes, config, logAffinities, chosen, weights);
    each(lanes, config.choices, [&](std::int64_t c) { weights[c] *= config.routingScale; });
    softmax(lanes, logAffinities, config.experts, shares);
    lanes.sync();
  }

  template <typename Lanes>
  MOECCL_DEVICE static void addTerms(const Lanes& lanes, const Config& config, const Token&,
                                     const Scratch& scratch, const std::int32_t* chosen,
                                     const double*, double* terms) {
    const double* const shares = scratch.doubles + 2 * static_cast<std::int64_t>(config.experts);
    for (std::int32_t c = 0; c < config.choices; ++c)
      if (owns(lanes, chosen[c])) terms[chosen[c]] += 1;
    each(lanes, config.experts, [&](std::int64_t e) { terms[config.experts + e] += shares[e]; });
  }

  template <typename Lanes>
  MOECCL_DEVICE static void differentiate(const Lanes& lanes, const Config& config,
                                          const Token& token, const Scratch& scratch,
                                          const std::int32_t* chosen, const double* dWeights,
                                          const double* dTerms, double* dLogits) {
    double* const dLogAffinities = scratch.doubles;
    double* const logAffinities = dLogAffinities + config.experts;
    double* const shares = logAffinities + config.experts;
    takeLogarithms(lanes, config, token, logAffinities);
    each(lanes, config.experts, [&](std::int64_t e) { dLogAffinities[e] = 0; });
    sharesOfChosen(lanes, config, logAffinities, chosen, shares);
    lanes.sync();
    double mean = 0;
    for (std::int32_t c = 0; c < config.choices; ++c) mean += shares[c] * dWeights[c];
    for (std::int32_t c = 0; c < config.choices; ++c)
      if (owns(lanes, chosen[c]))
        dLogAffinities[chosen[c]] += config.routingScale * shares[c] * (dWeights[c] - mean);
    lanes.sync();
    softmax(lanes, logAffinities, config.experts, shares);
    softmaxBackward(lanes, shares, dTerms + config.experts, config.experts, dLogAffinities);
    each(lanes, config.experts,
         [&](std::int64_t e) { dLogits[e] += dLogAffinities[e] * sigmoid(-token.logits[e]); });
    lanes.sync();
  }

  template <typename Lanes>
  MOECCL_DEVICE static double loss(const Lanes& lanes, const Config& config, const double* terms,
                                   double scale, double* dTerms) {
    const std::int64_t experts = config.experts, batch = config.batchTokens;
    const std::int64_t length = config.sequenceTokens == 0 ? batch : config.sequenceTokens;
    const std::int64_t sequences = (batch - 1) / length + 1;
    double sum = 0;
    for (std::int64_t s = 0; s < sequences; ++s) {
      const std::int64_t left = batch - s * length;
      const double tokens = static_cast<double>(left < length ? left : length);
      const double factor = static_cast<double>(experts) /
                            (config.choices * tokens * tokens * static_cast<double>(sequences));
      sum += countsTimesProbabilities(lanes, terms + 2 * s * experts, config.experts, factor, scale,
                                      dTerms + 2 * s * experts);
    }
    return sum;
  }

 private:
  // Takes the experts of all but the best groups out of `keys`.
  template <typename Lanes>
  MOECCL_DEVICE static void excludeGroups(const Lanes& lanes, const Config& config,
                                          const Scratch& scratch, double* keys, double* scores) {
    if (config.topGroups == config.expertGroups) return;
    const std::int32_t size = config.experts / config.expertGroups;
    std::int32_t* const best = scratch.ints;
    std::int32_t* const groups = best + 2;
    for (std::int32_t g = 0; g < config.expertGroups; ++g) {
      const std::int32_t count = size < 2 ? size : 2;
      largest(lanes, keys + g * size, size, count, best);
      double score = 0;
      for (std::int32_t i = 0; i < count; ++i) score += keys[g * size + best[i]];
      if (owns(lanes, g)) scores[g] = score;
      lanes.sync();
    }
    largest(lanes, scores, config.expertGroups, config.topGroups, groups);
    each(lanes, config.experts, [&](std::int64_t e) {
      bool kept = false;
      for (std::int32_t i = 0; i < config.topGroups; ++i) kept |= groups[i] == e / size;
      if (!kept) keys[e] = -std::numeric_limits<double>::infinity();
    });
    lanes.sync();
  }

  template <typename Lanes>
  MOECCL_DEVICE static void takeLogarithms(const Lanes& lanes, const Config& config,
                                           const Token& token, double* logAffinities) {
    each(lanes, config.experts,
         [&](std::int64_t e) { logAffinities[e] = -softplus(-token.logits[e]); });
    lanes.sync();
  }

  template <typename Lanes>
  MOECCL_DEVICE static void sharesOfChosen(const Lanes& lanes, const Config& config,
                                           const double* logAffinities, const std::int32_t* chosen,
                                           double* shares) {
    each(lanes, config.choices, [&](std::int64_t c) { shares[c] = logAffinities[chosen[c]]; });
    softmax(lanes, shares, config.choices, shares);
  }
};

}  // namespace moeccl::gates
