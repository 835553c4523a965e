#include <algorithm>
#include <numeric>

#include "kernels/blas.h"
#include "kernels/permute.h"

namespace moeccl {
namespace {

// The gradients of weight * row; returns the weight's.
template <typename Real>
Real backwardOfWeighted(Real weight, const Real* row, const Real* outputGradient,
                        std::int64_t embedding, Real* rowGradient) {
  for (std::int64_t m = 0; m < embedding; ++m) rowGradient[m] = weight * outputGradient[m];
  return blas::dot(embedding, row, outputGradient);
}

}  // namespace

template <typename Real>
void scatterTokens(const Choices<Real>& choices, const Real* input, std::int64_t embedding,
                   std::int64_t expertStride, Real* rows) {
  for (std::int64_t token = 0; token < choices.tokens; ++token)
    for (std::int32_t c = 0; c < choices.choices; ++c) {
      const std::int64_t at = token * choices.choices + c;
      if (choices.slots[at] < 0) continue;
      const std::int64_t row = choices.experts[at] * expertStride + choices.slots[at];
      std::copy_n(input + token * embedding, embedding, rows + row * embedding);
    }
}

template <typename Real>
void clearUnused(const std::int64_t* used, std::int64_t groups, std::int32_t experts,
                 std::int64_t groupSlots, std::int64_t embedding, std::int64_t expertStride,
                 Real* rows) {
  for (std::int32_t expert = 0; expert < experts; ++expert)
    for (std::int64_t group = 0; group < groups; ++group) {
      const std::int64_t count = used[group * experts + expert];
      const std::int64_t row = expert * expertStride + group * groupSlots + count;
      std::fill_n(rows + row * embedding, (groupSlots - count) * embedding, Real{0});
    }
}

template <typename Real>
void combineTokens(const Choices<Real>& choices, const Real* rows, std::int64_t embedding,
                   std::int64_t expertStride, Real* output) {
  for (std::int64_t token = 0; token < choices.tokens; ++token) {
    Real* const sum = output + token * embedding;
    std::fill_n(sum, embedding, Real{0});
    for (std::int32_t c = 0; c < choices.choices; ++c) {
      const std::int64_t at = token * choices.choices + c;
      if (choices.slots[at] < 0) continue;
      const Real weight = choices.weights[at];
      const Real* const row =
          rows + (choices.experts[at] * expertStride + choices.slots[at]) * embedding;
      for (std::int64_t m = 0; m < embedding; ++m) sum[m] += weight * row[m];
    }
  }
}

template <typename Real>
void scatterTokensBackward(const Choices<Real>& choices, const Real* rowGradients,
                           std::int64_t embedding, std::int64_t expertStride, Real* inputGradient) {
  for (std::int64_t token = 0; token < choices.tokens; ++token) {
    Real* const sum = inputGradient + token * embedding;
    std::fill_n(sum, embedding, Real{0});
    for (std::int32_t c = 0; c < choices.choices; ++c) {
      const std::int64_t at = token * choices.choices + c;
      if (choices.slots[at] < 0) continue;
      const Real* const row =
          rowGradients + (choices.experts[at] * expertStride + choices.slots[at]) * embedding;
      for (std::int64_t m = 0; m < embedding; ++m) sum[m] += row[m];
    }
  }
}

template <typename Real>
void combineTokensBackward(const Choices<Real>& choices, const Real* rows,
                           const Real* outputGradient, std::int64_t embedding,
                           std::int64_t expertStride, Real* rowGradients, Real* weightGradients) {
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

template <typename Real>
void listByExpert(const Choices<Real>& choices, std::int32_t experts, std::int64_t* begins,
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

template <typename Real>
void gatherListed(const Choices<Real>& choices, std::span<const std::int64_t> listed,
                  const Real* input, std::int64_t embedding, Real* rows) {
  for (std::int64_t at : listed) {
    std::copy_n(input + at / choices.choices * embedding, embedding, rows);
    rows += embedding;
  }
}

template <typename Real>
void addListed(const Choices<Real>& choices, std::span<const std::int64_t> listed, const Real* rows,
               std::int64_t embedding, Real* output) {
  for (std::int64_t at : listed) {
    const Real weight = choices.weights[at];
    Real* const sum = output + at / choices.choices * embedding;
    for (std::int64_t m = 0; m < embedding; ++m) sum[m] += weight * rows[m];
    rows += embedding;
  }
}

template <typename Real>
void gatherListedBackward(const Choices<Real>& choices, std::span<const std::int64_t> listed,
                          const Real* rowGradients, std::int64_t embedding, Real* inputGradient) {
  for (std::int64_t at : listed) {
    Real* const sum = inputGradient + at / choices.choices * embedding;
    for (std::int64_t m = 0; m < embedding; ++m) sum[m] += rowGradients[m];
    rowGradients += embedding;
  }
}

template <typename Real>
void addListedBackward(const Choices<Real>& choices, std::span<const std::int64_t> listed,
                       const Real* rows, const Real* outputGradient, std::int64_t embedding,
                       Real* rowGradients, Real* weightGradients) {
  for (std::int64_t at : listed) {
    weightGradients[at] = backwardOfWeighted(choices.weights[at], rows,
                                             outputGradient + at / choices.choices * embedding,
                                             embedding, rowGradients);
    rows += embedding;
    rowGradients += embedding;
  }
}

template void scatterTokens(const Choices<float>&, const float*, std::int64_t, std::int64_t,
                            float*);
template void clearUnused(const std::int64_t*, std::int64_t, std::int32_t, std::int64_t,
                          std::int64_t, std::int64_t, float*);
template void combineTokens(const Choices<float>&, const float*, std::int64_t, std::int64_t,
                            float*);
template void scatterTokensBackward(const Choices<float>&, const float*, std::int64_t, std::int64_t,
                                    float*);
template void combineTokensBackward(const Choices<float>&, const float*, const float*, std::int64_t,
                                    std::int64_t, float*, float*);
template void listByExpert(const Choices<float>&, std::int32_t, std::int64_t*, std::int64_t*);
template void gatherListed(const Choices<float>&, std::span<const std::int64_t>, const float*,
                           std::int64_t, float*);
template void addListed(const Choices<float>&, std::span<const std::int64_t>, const float*,
                        std::int64_t, float*);
template void gatherListedBackward(const Choices<float>&, std::span<const std::int64_t>,
                                   const float*, std::int64_t, float*);
template void addListedBackward(const Choices<float>&, std::span<const std::int64_t>, const float*,
                                const float*, std::int64_t, float*, float*);
template void scatterTokens(const Choices<double>&, const double*, std::int64_t, std::int64_t,
                            double*);
template void clearUnused(const std::int64_t*, std::int64_t, std::int32_t, std::int64_t,
                          std::int64_t, std::int64_t, double*);
template void combineTokens(const Choices<double>&, const double*, std::int64_t, std::int64_t,
                            double*);
template void scatterTokensBackward(const Choices<double>&, const double*, std::int64_t,
                                    std::int64_t, double*);
template void combineTokensBackward(const Choices<double>&, const double*, const double*,
                                    std::int64_t, std::int64_t, double*, double*);
template void listByExpert(const Choices<double>&, std::int32_t, std::int64_t*, std::int64_t*);
template void gatherListed(const Choices<double>&, std::span<const std::int64_t>, const double*,
                           std::int64_t, double*);
template void addListed(const Choices<double>&, std::span<const std::int64_t>, const double*,
                        std::int64_t, double*);
template void gatherListedBackward(const Choices<double>&, std::span<const std::int64_t>,
                                   const double*, std::int64_t, double*);
template void addListedBackward(const Choices<double>&, std::span<const std::int64_t>,
                                const double*, const double*, std::int64_t, double*, double*);

}  // namespace moeccl
