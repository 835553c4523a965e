#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/gate.h"

namespace moeccl {
namespace {

// Tokens and experts of one tile; its sums stay in registers.
constexpr int kTokens = 4, kExperts = 4;

// logits [kTokens][experts] of kTokens tokens. With fewer, `rows` repeats one.
void logitsOf(const float* const (&rows)[kTokens], const float* gate, std::int64_t embedding,
              std::int64_t experts, double* logits) {
  std::int64_t expert = 0;
  for (; expert + kExperts <= experts; expert += kExperts) {
    double sum[kTokens][kExperts] = {};
    for (std::int64_t m = 0; m < embedding; ++m) {
      const float* column = gate + m * experts + expert;
      for (int t = 0; t < kTokens; ++t)
        for (int e = 0; e < kExperts; ++e)
          sum[t][e] += static_cast<double>(rows[t][m]) * static_cast<double>(column[e]);
    }
    for (int t = 0; t < kTokens; ++t) std::copy_n(sum[t], kExperts, logits + t * experts + expert);
  }
  for (; expert < experts; ++expert) {
    double sum[kTokens] = {};
    for (std::int64_t m = 0; m < embedding; ++m)
      for (int t = 0; t < kTokens; ++t)
        sum[t] += static_cast<double>(rows[t][m]) * static_cast<double>(gate[m * experts + expert]);
    for (int t = 0; t < kTokens; ++t) logits[t * experts + expert] = sum[t];
  }
}

// The experts of the `choices` largest of `keys`, which hold no NaN. chosen: sorted so far, never
// longer than `choices`; a new expert goes behind its equals, which have smaller numbers.
void largest(const double* keys, std::int32_t experts, std::int32_t choices, std::int32_t* chosen) {
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

}  // namespace

std::int64_t gateWorkspace(const GateShape& shape) {
  return (kTokens + 1) * static_cast<std::int64_t>(shape.experts);
}

void chooseExperts(const GateShape& shape, const float* input, const float* gate,
                   std::int64_t tokens, std::span<double> workspace, std::int32_t* chosen,
                   float* weights, float* kept, const GateSums& sums) {
  const std::int64_t experts = shape.experts;
  double* const probabilities = workspace.data() + kTokens * experts;
  for (std::int64_t block = 0; block < tokens; block += kTokens) {
    const int rowsHere = static_cast<int>(std::min<std::int64_t>(kTokens, tokens - block));
    const float* rows[kTokens];
    for (int t = 0; t < kTokens; ++t)
      rows[t] = input + (block + std::min(t, rowsHere - 1)) * shape.embedding;
    logitsOf(rows, gate, shape.embedding, experts, workspace.data());

    for (int t = 0; t < rowsHere; ++t) {
      double* const logits = workspace.data() + t * experts;
      std::int32_t* const picks = chosen + (block + t) * shape.choices;
      float* const pickWeights = weights + (block + t) * shape.choices;

      double highest = -std::numeric_limits<double>::infinity();
      for (std::int64_t e = 0; e < experts; ++e) highest = std::max(highest, logits[e]);
      double total = 0;
      for (std::int64_t e = 0; e < experts; ++e)
        total += probabilities[e] = std::exp(logits[e] - highest);
      for (std::int64_t e = 0; e < experts; ++e) {
        probabilities[e] /= total;
        sums.probability[e] += probabilities[e];
        if (std::isnan(logits[e])) logits[e] = -std::numeric_limits<double>::infinity();
        if (kept != nullptr) kept[(block + t) * experts + e] = static_cast<float>(probabilities[e]);
      }

      largest(logits, shape.experts, shape.choices, picks);
      double weightSum = 0;
      for (std::int32_t c = 0; c < shape.choices; ++c) weightSum += probabilities[picks[c]];
      if (shape.choices == 1) weightSum = 1;
      for (std::int32_t c = 0; c < shape.choices; ++c) {
        pickWeights[c] = static_cast<float>(probabilities[picks[c]] / weightSum);
        sums.assigned[picks[c]] += 1;
      }
      sums.first[picks[0]] += 1;
    }
  }
}

void assignSlots(const CapacityShape& shape, const std::int32_t* chosen, std::int64_t tokens,
                 std::int64_t groups, std::int64_t* used, std::int64_t* slots) {
  std::fill_n(used, groups * shape.experts, 0);
  for (std::int64_t group = 0; group < groups; ++group) {
    const std::int64_t begin = std::min(tokens, group * shape.groupTokens);
    const std::int64_t end = std::min(tokens, begin + shape.groupTokens);
    std::int64_t* const usedHere = used + group * shape.experts;
    for (std::int32_t choice = 0; choice < shape.choices; ++choice)
      for (std::int64_t token = begin; token < end; ++token) {
        const std::int64_t at = token * shape.choices + choice;
        std::int64_t& count = usedHere[chosen[at]];
        slots[at] = count < shape.groupSlots ? group * shape.groupSlots + count++ : -1;
      }
  }
}

}  // namespace moeccl
