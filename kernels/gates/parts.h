// What gates share beside the product of tokens with weights: softmax, the largest of several.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/lanes.h"

namespace moeccl::gates {

// A logit is made of chains: sums of so many products each, in the order of the embedding, by fused
// multiply-adds in the inputs' own type. The chains are added in double, in their order. So every
// logit depends on its token and the gate alone, to the last bit, and not on the tokens around it:
// schedules that gate different parts of a batch, and CPUs and GPUs, agree on every choice.
constexpr int kChain = 32;

// Takes the place of NaN and of minus infinity where values are compared: still below all others,
// but above what is no candidate at all.
constexpr double kLowest = std::numeric_limits<double>::lowest();
MOECCL_DEVICE inline double comparable(double value) { return value > kLowest ? value : kLowest; }

// The experts of the `choices` largest of `keys`, which hold no NaN; equal ones by rising number.
// Keys that other lanes have written, and `chosen` if they may still read it, need a sync before.
template <typename Lanes>
MOECCL_DEVICE void largest(const Lanes& lanes, const double* keys, std::int32_t experts,
                           std::int32_t choices, std::int32_t* chosen) {
  if constexpr (Lanes::kCount == 1) {
    // Sorted so far, never longer than `choices`; a new expert goes behind its equals.
    std::int32_t count = 0;
    for (std::int32_t expert = 0; expert < experts; ++expert) {
      if (count == choices && !(keys[expert] > keys[chosen[count - 1]])) continue;
      std::int32_t place = count < choices ? count++ : choices - 1;
      for (; place > 0 && keys[expert] > keys[chosen[place - 1]]; --place)
        chosen[place] = chosen[place - 1];
      chosen[place] = expert;
    }
  } else {
    Ranked last{0, -1};
    for (std::int32_t choice = 0; choice < choices; ++choice) {
      Ranked best{0, -1};
      each(lanes, experts, [&](std::int64_t expert) {
        const Ranked candidate{keys[expert], static_cast<std::int32_t>(expert)};
        if ((choice == 0 || last.before(candidate)) && candidate.before(best)) best = candidate;
      });
      last = lanes.first(best);
      if (lanes.index() == 0) chosen[choice] = last.index;
    }
    lanes.sync();
  }
}

// probabilities = softmax(logits), `count` of each; may be the same array. All are NaN when a logit
// is NaN or plus infinity, or all are minus infinity.
template <typename Lanes>
MOECCL_DEVICE void softmax(const Lanes& lanes, const double* logits, std::int64_t count,
                           double* probabilities) {
  double highest = -std::numeric_limits<double>::infinity();
  each(lanes, count, [&](std::int64_t i) { highest = highest < logits[i] ? logits[i] : highest; });
  highest = lanes.max(highest);
  double total = 0;
  each(lanes, count,
       [&](std::int64_t i) { total += probabilities[i] = std::exp(logits[i] - highest); });
  total = lanes.sum(total);
  each(lanes, count, [&](std::int64_t i) { probabilities[i] /= total; });
}

// Adds to dLogits what dProbabilities makes of them.
template <typename Lanes>
MOECCL_DEVICE void softmaxBackward(const Lanes& lanes, const double* probabilities,
                                   const double* dProbabilities, std::int64_t count,
                                   double* dLogits) {
  double mean = 0;
  each(lanes, count, [&](std::int64_t i) { mean += probabilities[i] * dProbabilities[i]; });
  mean = lanes.sum(mean);
  each(lanes, count,
       [&](std::int64_t i) { dLogits[i] += probabilities[i] * (dProbabilities[i] - mean); });
}

// The factor by which jitter multiplies an input, from a uniform random number.
MOECCL_DEVICE inline double jitterFactor(double jitter, double uniform) {
  return 1 + jitter * (2 * uniform - 1);
}

// 1 / (1 + exp(-x)), to full precision for every x.
MOECCL_DEVICE inline double sigmoid(double x) {
  const double small = std::exp(-std::fabs(x));
  return (x < 0 ? small : 1.0) / (1 + small);
}

// log(1 + exp(x)).
MOECCL_DEVICE inline double softplus(double x) {
  return (x > 0 ? x : 0.0) + std::log1p(std::exp(-std::fabs(x)));
}

}  // namespace moeccl::gates
