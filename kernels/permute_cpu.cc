#include <cblas.h>

#include <algorithm>
#include <numeric>

#include "kernels/permute.h"

namespace moeccl {
namespace {

// The gradients of weight * row; returns the weight's.
float backwardOfWeighted(float weight, const float* row, const float* outputGradient,
                         std::int64_t embedding, float* rowGradient) {
  for (std::int64_t m = 0; m < embedding; ++m) rowGradient[m] = weight * outputGradient[m];
  return cblas_sdot(static_cast<blasint>(embedding), row, 1, outputGradient, 1);
}

}  // namespace

void scatterTokens(const Choices& choices, const float* input, std::int64_t embedding,
                   std::int64_t expertStride, float* rows) {
  for (std::int64_t token = 0; token < choices.tokens; ++token)
    for (std::int32_t c = 0; c < choices.choices; ++c) {
      const std::int64_t at = token * choices.choices + c;
      if (choices.slots[at] < 0) continue;
      const std::int64_t row = choices.experts[at] * expertStride + choices.slots[at];
      std::copy_n(input + token * embedding, embedding, rows + row * embedding);
    }
}

void clearUnused(const std::int64_t* used, std::int64_t groups, std::int32_t experts,
                 std::int64_t groupSlots, std::int64_t embedding, std::int64_t expertStride,
                 float* rows) {
  for (std::int32_t expert = 0; expert < experts; ++expert)
    for (std::int64_t group = 0; group < groups; ++group) {
      const std::int64_t count = used[group * experts + expert];
      const std::int64_t row = expert * expertStride + group * groupSlots + count;
      std::fill_n(rows + row * embedding, (groupSlots - count) * embedding, 0.0f);
    }
}

void combineTokens(const Choices& choices, const float* rows, std::int64_t embedding,
                   std::int64_t expertStride, float* output) {
  for (std::int64_t token = 0; token < choices.tokens; ++token) {
    float* const sum = output + token * embedding;
    std::fill_n(sum, embedding, 0.0f);
    for (std::int32_t c = 0; c < choices.choices; ++c) {
      const std::int64_t at = token * choices.choices + c;
      if (choices.slots[at] < 0) continue;
      const float weight = choices.weights[at];
      const float* const row =
          rows + (choices.experts[at] * expertStride + choices.slots[at]) * embedding;
      for (std::int64_t m = 0; m < embedding; ++m) sum[m] += weight * row[m];
    }
  }
}

void scatterTokensBackward(const Choices& choices, const float* rowGradients,
                           std::int64_t embedding, std::int64_t expertStride,
                           float* inputGradient) {
  for (std::int64_t token = 0; token < choices.tokens; ++token) {
    float* const sum = inputGradient + token * embedding;
    std::fill_n(sum, embedding, 0.0f);
    for (std::int32_t c = 0; c < choices.choices; ++c) {
      const std::int64_t at = token * choices.choices + c;
      if (choices.slots[at] < 0) continue;
      const float* const row =
          rowGradients + (choices.experts[at] * expertStride + choices.slots[at]) * embedding;
      for (std::int64_t m = 0; m < embedding; ++m) sum[m] += row[m];
    }
  }
}

void combineTokensBackward(const Choices& choices, const float* rows, const float* outputGradient,
                           std::int64_t embedding, std::int64_t expertStride, float* rowGradients,
                           float* weightGradients) {
  for (std::int64_t token = 0; token < choices.tokens; ++token)
    for (std::int32_t c = 0; c < choices.choices; ++c) {
      const std::int64_t at = token * choices.choices + c;
      weightGradients[at] = 0;
      if (choices.slots[at] < 0) continue;
      const std::int64_t element =
          (choices.experts[at] * expertStride + choices.slots[at]) * embedding;
      weightGradients[at] =
          backwardOfWeighted(choices.weights[at], rows + element,
                             outputGradient + token * embedding, embedding, rowGradients + element);
    }
}

void listByExpert(const Choices& choices, std::int32_t experts, std::int64_t* begins,
                  std::int64_t* listed) {
  const std::int64_t count = choices.tokens * choices.choices;
  // Counts are kept two places late: so begins[e + 1] is first where expert e begins, and is then
  // moved, choice by choice, to where it ends.
  std::fill_n(begins, experts + 1, 0);
  for (std::int64_t at = 0; at < count; ++at)
    if (choices.slots[at] >= 0 && choices.experts[at] + 1 < experts)
      ++begins[choices.experts[at] + 2];
  std::partial_sum(begins, begins + experts + 1, begins);
  for (std::int64_t at = 0; at < count; ++at)
    if (choices.slots[at] >= 0) listed[begins[choices.experts[at] + 1]++] = at;
}

void gatherListed(const Choices& choices, std::span<const std::int64_t> listed, const float* input,
                  std::int64_t embedding, float* rows) {
  for (std::int64_t at : listed) {
    std::copy_n(input + at / choices.choices * embedding, embedding, rows);
    rows += embedding;
  }
}

void addListed(const Choices& choices, std::span<const std::int64_t> listed, const float* rows,
               std::int64_t embedding, float* output) {
  for (std::int64_t at : listed) {
    const float weight = choices.weights[at];
    float* const sum = output + at / choices.choices * embedding;
    for (std::int64_t m = 0; m < embedding; ++m) sum[m] += weight * rows[m];
    rows += embedding;
  }
}

void gatherListedBackward(const Choices& choices, std::span<const std::int64_t> listed,
                          const float* rowGradients, std::int64_t embedding, float* inputGradient) {
  for (std::int64_t at : listed) {
    float* const sum = inputGradient + at / choices.choices * embedding;
    for (std::int64_t m = 0; m < embedding; ++m) sum[m] += rowGradients[m];
    rowGradients += embedding;
  }
}

void addListedBackward(const Choices& choices, std::span<const std::int64_t> listed,
                       const float* rows, const float* outputGradient, std::int64_t embedding,
                       float* rowGradients, float* weightGradients) {
  for (std::int64_t at : listed) {
    weightGradients[at] = backwardOfWeighted(choices.weights[at], rows,
                                             outputGradient + at / choices.choices * embedding,
                                             embedding, rowGradients);
    rows += embedding;
    rowGradients += embedding;
  }
}

}  // namespace moeccl
