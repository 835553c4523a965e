// GShard's top-2 (Lepikhin et al. 2020, algorithm 1).
//
//   p = softmax(logits);  e1, e2: the two largest;  g1 = p1 / (p1 + p2), g2 = p2 / (p1 + p2)
//   e1 with weight g1;  e2 with weight g2 where 2 g2 > a uniform random number (line 19), else none
//   loss = mean over e of (c_e / S) m_e        (line 13, where S is the whole batch)
//     c: tokens whose first choice e is, before capacity    m: mean of p_e
//
// A second choice that is not taken takes no place; in the paper it leaves one empty (line 22).
// Without random numbers the second choice is always taken.
#pragma once

#include "kernels/gates/parts.h"
#include "kernels/gates/rule.h"

namespace moeccl::gates {

struct GshardRule {
  static std::int64_t doubles(const Config& config) {
    return 2 * static_cast<std::int64_t>(config.experts);
  }
  static std::int64_t ints(const Config&) { return 2; }

  template <typename Lanes>
  MOECCL_DEVICE static void choose(const Lanes& lanes, const Config& config, const Token& token,
                                   const Scratch& scratch, std::int32_t* chosen, double* weights) {
    const Pair pair = bestTwo(lanes, config, token, scratch, chosen);
    const bool second =
        token.random == nullptr || 2 * pair.second > token.random->uniform(token.index, 0);
    if (lanes.index() == 0) {
      weights[0] = pair.first;
      weights[1] = second ? pair.second : 0;
      if (!second) chosen[1] = -1;
    }
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
                                          const std::int32_t*, const double* dWeights,
                                          const double* dTerms, double* dLogits) {
    // The first one's weight depends on the second, taken or not.
    std::int32_t* const best = scratch.ints;
    const Pair pair = bestTwo(lanes, config, token, scratch, best);
    const double change = pair.first * pair.second * (dWeights[0] - dWeights[1]);
    if (owns(lanes, best[0])) dLogits[best[0]] += change;
    if (owns(lanes, best[1])) dLogits[best[1]] -= change;
    softmaxBackward(lanes, scratch.doubles, dTerms + config.experts, config.experts, dLogits);
    lanes.sync();
  }

  template <typename Lanes>
  MOECCL_DEVICE static double loss(const Lanes& lanes, const Config& config, const double* terms,
                                   double scale, double* dTerms) {
    const double tokens = static_cast<double>(config.batchTokens);
    return countsTimesProbabilities(lanes, terms, config.experts,
                                    1 / (config.experts * tokens * tokens), scale, dTerms);
  }

 private:
  struct Pair {
    double first, second;
  };

  // The two weights, before chance; leaves the probabilities of all experts in the scratch.
  template <typename Lanes>
  MOECCL_DEVICE static Pair bestTwo(const Lanes& lanes, const Config& config, const Token& token,
                                    const Scratch& scratch, std::int32_t* best) {
    double* const probabilities = scratch.doubles;
    double* const keys = probabilities + config.experts;
    softmax(lanes, token.logits, config.experts, probabilities);
    each(lanes, config.experts, [&](std::int64_t e) { keys[e] = comparable(token.logits[e]); });
    lanes.sync();
    largest(lanes, keys, config.experts, 2, best);
    const double first = probabilities[best[0]], second = probabilities[best[1]];
    return {first / (first + second), second / (first + second)};
  }
};

}  // namespace moeccl::gates
