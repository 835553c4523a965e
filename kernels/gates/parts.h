// What gates share: the product of tokens with the gate's weights, softmax, the largest of several.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace moeccl::gates {

// Tokens and experts of one tile of the product; its sums stay in registers.
constexpr int kTileTokens = 4, kTileExperts = 4;

// logits [experts] of kTileTokens tokens = row [embedding] x gate [embedding][experts]. With fewer
// tokens, repeat one.
//
// A token's logits depend on that token and the gate alone, to the last bit, and not on the tokens
// around it: the sums run in the order of the embedding, and an expert's by the same code for every
// token. A product of two floats is exact in double, one rounding per term with fused multiply-add as
// without. So schedules that gate different parts of a batch agree on every choice.
template <typename Row, typename Weight>
void logitsOf(const Row* const (&rows)[kTileTokens], const Weight* gate, std::int64_t embedding,
              std::int64_t experts, double* const (&logits)[kTileTokens]) {
  std::int64_t expert = 0;
  for (; expert + kTileExperts <= experts; expert += kTileExperts) {
    double sum[kTileTokens][kTileExperts] = {};
    for (std::int64_t m = 0; m < embedding; ++m) {
      const Weight* column = gate + m * experts + expert;
      for (int t = 0; t < kTileTokens; ++t)
        for (int e = 0; e < kTileExperts; ++e)
          sum[t][e] += static_cast<double>(rows[t][m]) * static_cast<double>(column[e]);
    }
    for (int t = 0; t < kTileTokens; ++t) std::copy_n(sum[t], kTileExperts, logits[t] + expert);
  }
  for (; expert < experts; ++expert) {
    double sum[kTileTokens] = {};
    for (std::int64_t m = 0; m < embedding; ++m)
      for (int t = 0; t < kTileTokens; ++t)
        sum[t] += static_cast<double>(rows[t][m]) * static_cast<double>(gate[m * experts + expert]);
    for (int t = 0; t < kTileTokens; ++t) logits[t][expert] = sum[t];
  }
}

// Takes the place of NaN and of minus infinity where values are compared: still below all others,
// but above what is no candidate at all.
constexpr double kLowest = std::numeric_limits<double>::lowest();
inline double comparable(double value) { return std::max(kLowest, value); }

// The experts of the `choices` largest of `keys`, which hold no NaN; equal ones by rising number.
inline void largest(const double* keys, std::int32_t experts, std::int32_t choices,
                    std::int32_t* chosen) {
  // Sorted so far, never longer than `choices`; a new expert goes behind its equals.
  std::int32_t count = 0;
  for (std::int32_t expert = 0; expert < experts; ++expert) {
    if (count == choices && !(keys[expert] > keys[chosen[count - 1]])) continue;
    std::int32_t* const end = chosen + count;
    std::int32_t* const place = std::upper_bound(
        chosen, end, expert, [keys](std::int32_t a, std::int32_t b) { return keys[a] > keys[b]; });
    std::copy_backward(place, count == choices ? end - 1 : end, count == choices ? end : end + 1);
    *place = expert;
    count = std::min(count + 1, choices);
  }
}

// probabilities = softmax(logits), `count` of each; may be the same array. All are NaN when a logit
// is NaN or plus infinity, or all are minus infinity.
inline void softmax(const double* logits, std::int64_t count, double* probabilities) {
  double highest = -std::numeric_limits<double>::infinity();
  for (std::int64_t i = 0; i < count; ++i) highest = std::max(highest, logits[i]);
  double total = 0;
  for (std::int64_t i = 0; i < count; ++i)
    total += probabilities[i] = std::exp(logits[i] - highest);
  for (std::int64_t i = 0; i < count; ++i) probabilities[i] /= total;
}

// Adds to dLogits what dProbabilities makes of them.
inline void softmaxBackward(const double* probabilities, const double* dProbabilities,
                            std::int64_t count, double* dLogits) {
  double mean = 0;
  for (std::int64_t i = 0; i < count; ++i) mean += probabilities[i] * dProbabilities[i];
  for (std::int64_t i = 0; i < count; ++i)
    dLogits[i] += probabilities[i] * (dProbabilities[i] - mean);
}

// 1 / (1 + exp(-x)), to full precision for every x.
inline double sigmoid(double x) {
  const double small = std::exp(-std::fabs(x));
  return (x < 0 ? small : 1.0) / (1 + small);
}

// log(1 + exp(x)).
inline double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }

}  // namespace moeccl::gates
