// Noisy top-k (Shazeer et al. 2017, section 2.1 and appendix A).
//
//   H_i = (x W_g)_i + normal_i softplus((x W_noise)_i)                             (equation 4)
//   chosen: the k largest H;  weights: softmax over those                         (3 and 5)
//   importance_i = sum over tokens of the weight of i                             (6)
//   P_i = Phi(((x W_g)_i - kth_excluding(H, k, i)) / softplus((x W_noise)_i))     (8 and 9)
//   load_i = sum over tokens of P_i                                               (10)
//   loss = importanceWeight CV(importance)^2 + loadWeight CV(load)^2              (7 and 11)
//
// kth_excluding: the k-th largest but for i itself. With k = E there is none, and P is 1. Where the
// softplus rounds to zero, P is 0 or 1. Without random numbers normal is 0. CV: standard deviation
// of all experts, over the mean; 0 where the mean is.
#pragma once

#include <numbers>

#include "kernels/gates/parts.h"
#include "kernels/gates/rule.h"

namespace moeccl::gates {

class NoisyRule {
 public:
  static std::int64_t doubles(const Config& config) {
    return 5 * static_cast<std::int64_t>(config.experts) + config.choices;
  }
  static std::int64_t ints(const Config& config) {
    return static_cast<std::int64_t>(config.choices) + 1 + config.experts;
  }

  template <typename Lanes>
  MOECCL_DEVICE static void choose(const Lanes& lanes, const Config& config, const Token& token,
                                   const Scratch& scratch, std::int32_t* chosen, double* weights) {
    const Ranking at = rank(lanes, config, token, scratch);
    each(lanes, config.choices, [&](std::int64_t c) { chosen[c] = at.best[c]; });
    weightsOf(lanes, config, at, weights);
    lanes.sync();
  }

  template <typename Lanes>
  MOECCL_DEVICE static void addTerms(const Lanes& lanes, const Config& config, const Token& token,
                                     const Scratch& scratch, const std::int32_t*,
                                     const double* weights, double* terms) {
    const Ranking at = ranking(config, scratch);
    for (std::int32_t c = 0; c < config.choices; ++c)
      if (owns(lanes, at.best[c])) terms[at.best[c]] += weights[c];
    each(lanes, config.experts, [&](std::int64_t e) {
      double& load = terms[config.experts + e];
      if (at.rival[e] < 0)
        load += 1;
      else if (!(at.spread[e] > 0))
        load += token.logits[e] > at.noisy[at.rival[e]] ? 1 : 0;
      else
        load += std::erfc(-lead(at, token, e) / std::numbers::sqrt2) / 2;
    });
  }

  template <typename Lanes>
  MOECCL_DEVICE static void differentiate(const Lanes& lanes, const Config& config,
                                          const Token& token, const Scratch& scratch,
                                          const std::int32_t*, const double* dWeights,
                                          const double* dTerms, double* dLogits) {
    const Ranking at = rank(lanes, config, token, scratch);
    const std::int64_t experts = config.experts;
    each(lanes, experts, [&](std::int64_t e) { at.dNoisy[e] = at.dSpread[e] = 0; });
    differentiateWeights(lanes, config, at, dWeights, dTerms);
    differentiateLoad(lanes, config, at, token, dTerms + experts, dLogits);
    each(lanes, experts, [&](std::int64_t e) {
      dLogits[e] += at.dNoisy[e];
      dLogits[experts + e] +=
          (at.dSpread[e] + at.dNoisy[e] * at.normal[e]) * sigmoid(token.logits[experts + e]);
    });
    lanes.sync();
  }

  template <typename Lanes>
  MOECCL_DEVICE static double loss(const Lanes& lanes, const Config& config, const double* terms,
                                   double scale, double* dTerms) {
    const std::int32_t experts = config.experts;
    return squaredVariation(lanes, terms, experts, config.importanceWeight, scale, dTerms) +
           squaredVariation(lanes, terms + experts, experts, config.loadWeight, scale,
                            dTerms + experts);
  }

 private:
  // Where everything is in the scratch.
  struct Ranking {
    double *normal, *spread, *noisy, *dNoisy, *dSpread;  // [experts]
    double* weights;                                     // [choices]
    std::int32_t* best;                                  // one more than the choices
    std::int32_t* rival;                                 // [experts]: whom each must beat; -1: none
  };

  MOECCL_DEVICE static Ranking ranking(const Config& config, const Scratch& scratch) {
    const std::int64_t experts = config.experts;
    double* const first = scratch.doubles;
    return {first,
            first + experts,
            first + 2 * experts,
            first + 3 * experts,
            first + 4 * experts,
            first + 5 * experts,
            scratch.ints,
            scratch.ints + config.choices + 1};
  }

  template <typename Lanes>
  MOECCL_DEVICE static Ranking rank(const Lanes& lanes, const Config& config, const Token& token,
                                    const Scratch& scratch) {
    const std::int64_t experts = config.experts;
    const std::int32_t choices = config.choices;
    const Ranking at = ranking(config, scratch);
    double* const keys = at.dNoisy;  // which nobody needs yet
    each(lanes, experts, [&](std::int64_t e) {
      at.normal[e] = token.random == nullptr ? 0.0 : token.random->normal(token.index, e);
      at.spread[e] = softplus(token.logits[experts + e]);
      at.noisy[e] = token.logits[e] + at.normal[e] * at.spread[e];
      keys[e] = comparable(at.noisy[e]);
    });
    lanes.sync();
    const std::int32_t ranked = choices < config.experts ? choices + 1 : choices;
    largest(lanes, keys, config.experts, ranked, at.best);
    each(lanes, experts, [&](std::int64_t e) { at.rival[e] = at.best[choices - 1]; });
    for (std::int32_t c = 0; c < choices; ++c)
      if (owns(lanes, at.best[c])) at.rival[at.best[c]] = ranked > choices ? at.best[choices] : -1;
    lanes.sync();
    return at;
  }

  // The argument of Phi.
  MOECCL_DEVICE static double lead(const Ranking& at, const Token& token, std::int64_t expert) {
    return (token.logits[expert] - at.noisy[at.rival[expert]]) / at.spread[expert];
  }

  template <typename Lanes>
  MOECCL_DEVICE static void weightsOf(const Lanes& lanes, const Config& config, const Ranking& at,
                                      double* weights) {
    each(lanes, config.choices, [&](std::int64_t c) { weights[c] = at.noisy[at.best[c]]; });
    softmax(lanes, weights, config.choices, weights);
  }

  template <typename Lanes>
  MOECCL_DEVICE static void differentiateWeights(const Lanes& lanes, const Config& config,
                                                 const Ranking& at, const double* dWeights,
                                                 const double* dImportance) {
    weightsOf(lanes, config, at, at.weights);
    lanes.sync();
    double mean = 0;
    for (std::int32_t c = 0; c < config.choices; ++c)
      mean += at.weights[c] * (dWeights[c] + dImportance[at.best[c]]);
    for (std::int32_t c = 0; c < config.choices; ++c)
      if (owns(lanes, at.best[c]))
        at.dNoisy[at.best[c]] += at.weights[c] * (dWeights[c] + dImportance[at.best[c]] - mean);
  }

  template <typename Lanes>
  MOECCL_DEVICE static void differentiateLoad(const Lanes& lanes, const Config& config,
                                              const Ranking& at, const Token& token,
                                              const double* dLoad, double* dLogits) {
    // There are two rivals: the best that is not chosen, and for all others the last that is.
    const std::int32_t last = at.best[config.choices - 1];
    double ofLast = 0, ofNext = 0;
    each(lanes, config.experts, [&](std::int64_t e) {
      if (at.rival[e] < 0 || !(at.spread[e] > 0)) return;
      const double ahead = lead(at, token, e);
      const double density =
          std::exp(-ahead * ahead / 2) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
      if (density == 0) return;  // `ahead` may be infinite
      const double slope = dLoad[e] * density / at.spread[e];
      dLogits[e] += slope;
      (at.rival[e] == last ? ofLast : ofNext) += slope;
      at.dSpread[e] -= slope * ahead;
    });
    ofLast = lanes.sum(ofLast);
    ofNext = lanes.sum(ofNext);
    if (owns(lanes, last)) at.dNoisy[last] -= ofLast;
    if (config.choices == config.experts) return;
    const std::int32_t next = at.best[config.choices];
    if (owns(lanes, next)) at.dNoisy[next] -= ofNext;
  }

  // Sets gradient [count] to scale * that of weight * CV(values)^2.
  template <typename Lanes>
  MOECCL_DEVICE static double squaredVariation(const Lanes& lanes, const double* values,
                                               std::int32_t count, double weight, double scale,
                                               double* gradient) {
    double sum = 0, squares = 0, variance = 0;
    each(lanes, count, [&](std::int64_t i) {
      sum += values[i];
      squares += values[i] * values[i];
      gradient[i] = 0;
    });
    sum = lanes.sum(sum);
    squares = lanes.sum(squares);
    if (sum == 0) return 0;
    const double mean = sum / count;
    each(lanes, count, [&](std::int64_t i) {
      variance += (values[i] - mean) * (values[i] - mean) / count;
      gradient[i] = scale * weight * 2 * count / (sum * sum) * (values[i] - squares / sum);
    });
    return weight * lanes.sum(variance) / (mean * mean);
  }
};

}  // namespace moeccl::gates
