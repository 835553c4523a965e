#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/gate.h"
#include "kernels/gates/parts.h"

namespace moeccl {

std::int64_t gateWorkspace(const GateShape& shape) {
  return (gates::kTileTokens + 1) * static_cast<std::int64_t>(shape.experts);
}

void chooseExperts(const GateShape& shape, const float* input, const float* gate,
                   std::int64_t tokens, std::span<double> workspace, std::int32_t* chosen,
                   float* weights, float* kept, const GateSums& sums) {
  constexpr int kTokens = gates::kTileTokens;
  const std::int64_t experts = shape.experts;
  double* const probabilities = workspace.data() + kTokens * experts;
  for (std::int64_t block = 0; block < tokens; block += kTokens) {
    const int rowsHere = static_cast<int>(std::min<std::int64_t>(kTokens, tokens - block));
    const float* rows[kTokens];
    double* logitRows[kTokens];
    for (int t = 0; t < kTokens; ++t) {
      rows[t] = input + (block + std::min(t, rowsHere - 1)) * shape.embedding;
      logitRows[t] = workspace.data() + t * experts;
    }
    gates::logitsOf(rows, gate, shape.embedding, experts, logitRows);

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

      gates::largest(logits, shape.experts, shape.choices, picks);
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

}  // namespace moeccl
