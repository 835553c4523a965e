#include <cblas.h>

#include <algorithm>

#include "kernels/gate_backward.h"

namespace moeccl {
namespace {

// Tokens of one product: their number must fit into BLAS's, which may be an int.
constexpr std::int64_t kBlockTokens = std::int64_t{1} << 20;

}  // namespace

// With p = softmax(logits), any loss L has dL/dlogit_e = p_e (g_e - sum_j p_j g_j), where g = dL/dp. The
// same constant may be subtracted from all g: that of the largest p, so that a p near 1 cancels nothing.
// Weights that are divided by their sum are the softmax of the chosen logits alone, so the same holds of
// them, among themselves.
void softmaxTopKBackward(const GateShape& shape, const GateChoices& choices,
                         const float* weightGradients, const double* probabilityGradients,
                         float* logitGradients) {
  const std::int64_t experts = shape.experts, perToken = shape.choices;
  for (std::int64_t token = 0; token < choices.tokens; ++token) {
    const std::int32_t* const chosen = choices.chosen + token * perToken;
    const float* const weights = choices.weights + token * perToken;
    const float* const probabilities = choices.probabilities + token * experts;
    const float* const ofWeights = weightGradients + token * perToken;
    float* const ofLogits = logitGradients + token * experts;

    // The only weight is a probability itself.
    const double ofOnly = perToken == 1 ? ofWeights[0] : 0;
    const double largest = probabilityGradients[chosen[0]] + ofOnly;
    const auto ofProbability = [&](std::int64_t e) {
      return e == chosen[0] ? 0 : probabilityGradients[e] - largest;
    };
    double mean = 0;
    for (std::int64_t e = 0; e < experts; ++e) mean += probabilities[e] * ofProbability(e);
    for (std::int64_t e = 0; e < experts; ++e)
      ofLogits[e] = static_cast<float>(probabilities[e] * (ofProbability(e) - mean));
    if (perToken == 1) continue;

    const auto ofWeight = [&](std::int64_t c) {
      return static_cast<double>(ofWeights[c]) - ofWeights[0];
    };
    mean = 0;
    for (std::int64_t c = 0; c < perToken; ++c) mean += weights[c] * ofWeight(c);
    for (std::int64_t c = 0; c < perToken; ++c)
      ofLogits[chosen[c]] += static_cast<float>(weights[c] * (ofWeight(c) - mean));
  }
}

void gateProductBackward(const GateShape& shape, const float* input, const float* gate,
                         const float* logitGradients, std::int64_t tokens, float* gateGradient,
                         float* inputGradient) {
  const auto embedding = static_cast<blasint>(shape.embedding);
  const auto experts = static_cast<blasint>(shape.experts);
  for (std::int64_t begin = 0; begin < tokens; begin += kBlockTokens) {
    const auto count = static_cast<blasint>(std::min(kBlockTokens, tokens - begin));
    const float* const ofLogits = logitGradients + begin * shape.experts;
    if (gateGradient != nullptr)
      cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, embedding, experts, count, 1.0f,
                  input + begin * shape.embedding, embedding, ofLogits, experts, 1.0f, gateGradient,
                  experts);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, count, embedding, experts, 1.0f, ofLogits,
                experts, gate, experts, 1.0f, inputGradient + begin * shape.embedding, embedding);
  }
}

}  // namespace moeccl
