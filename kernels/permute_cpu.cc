#include <algorithm>
#include <numeric>

#include "kernels/permute.h"

namespace moeccl {

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

void listByExpert(const Choices& choices, std::int32_t experts, std::int64_t* begins,
                  std::int64_t* listed) {
  const std::int64_t count = choices.tokens * choices.choices;
  // Counts, one place late, become the places to write to, one expert late: begins[e + 1] ends where
  // expert e does.
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

}  // namespace moeccl
