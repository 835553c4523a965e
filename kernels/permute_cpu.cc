// Moves tokens to places or lists of rows and back on the host, forward and backward, row by row.
#include <algorithm>
#include <numeric>

#include "kernels/permute.h"

namespace moeccl {
namespace {

// output = the sum of what forEachTerm(add) adds, by add(weight, row), to what was there before if
// `more`.
template <typename Real, typename Terms>
void sumRows(std::int64_t embedding, bool more, Terms forEachTerm, Real* output) {
  constexpr std::int64_t kBlock = 64;
  for (std::int64_t begin = 0; begin < embedding; begin += kBlock) {
    const std::int64_t count = std::min(kBlock, embedding - begin);
    Wide<Real> sums[kBlock] = {};
    if (more) widen(output + begin, count, sums);
    forEachTerm([&](Wide<Real> weight, const Real* row) {
      for (std::int64_t m = 0; m < count; ++m) sums[m] += weight * widen(row[begin + m]);
    });
    narrow(sums, count, output + begin);
  }
}

template <typename Real>
Wide<Real> dot(std::int64_t embedding, const Real* a, const Real* b) {
  constexpr std::int64_t kLanes = 16;
  Wide<Real> sums[kLanes] = {}, sum = 0;
  std::int64_t m = 0;
  for (; m + kLanes <= embedding; m += kLanes)
    for (std::int64_t i = 0; i < kLanes; ++i) sums[i] += widen(a[m + i]) * widen(b[m + i]);
  for (; m < embedding; ++m) sum += widen(a[m]) * widen(b[m]);
  for (const Wide<Real> lane : sums) sum += lane;
  return sum;
}

// The gradients of weight * row; returns the weight's.
template <typename Weight, typename Real>
Weight backwardOfWeighted(Wide<Real> weight, const Real* row, const Real* outputGradient,
                          std::int64_t embedding, Real* rowGradient) {
  for (std::int64_t m = 0; m < embedding; ++m)
    rowGradient[m] = narrowed<Real>(weight * widen(outputGradient[m]));
  return narrowed<Weight>(dot(embedding, row, outputGradient));
}

}  // namespace

template <typename Real>
void scatterTokens(const Choices<Wide<Real>>& choices, const Real* input, std::int64_t embedding,
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
      std::fill_n(rows + row * embedding, (groupSlots - count) * embedding, Real{});
    }
}

template <typename Real>
void combineTokens(const Choices<Wide<Real>>& choices, const Real* rows, std::int64_t embedding,
                   std::int64_t expertStride, Real* output) {
  for (std::int64_t token = 0; token < choices.tokens; ++token) {
    const auto terms = [&](auto add) {
      for (std::int32_t c = 0; c < choices.choices; ++c) {
        const std::int64_t at = token * choices.choices + c;
        if (choices.slots[at] < 0) continue;
        const std::int64_t row = choices.experts[at] * expertStride + choices.slots[at];
        add(choices.weights[at], rows + row * embedding);
      }
    };
    sumRows(embedding, false, terms, output + token * embedding);
  }
}

template <typename Real>
void scatterTokensBackward(const Choices<Wide<Real>>& choices, const Real* rowGradients,
                           std::int64_t embedding, std::int64_t expertStride, Real* inputGradient) {
  for (std::int64_t token = 0; token < choices.tokens; ++token) {
    const auto terms = [&](auto add) {
      for (std::int32_t c = 0; c < choices.choices; ++c) {
        const std::int64_t at = token * choices.choices + c;
        if (choices.slots[at] < 0) continue;
        const std::int64_t row = choices.experts[at] * expertStride + choices.slots[at];
        add(1, rowGradients + row * embedding);
      }
    };
    sumRows(embedding, false, terms, inputGradient + token * embedding);
  }
}

template <typename Real, typename Weight>
void combineTokensBackward(const Choices<Wide<Real>>& choices, const Real* rows,
                           const Real* outputGradient, std::int64_t embedding,
                           std::int64_t expertStride, Real* rowGradients, Weight* weightGradients) {
  for (std::int64_t token = 0; token < choices.tokens; ++token)
    for (std::int32_t c = 0; c < choices.choices; ++c) {
      const std::int64_t at = token * choices.choices + c;
      weightGradients[at] = Weight{};
      if (choices.slots[at] < 0) continue;
      const std::int64_t element =
          (choices.experts[at] * expertStride + choices.slots[at]) * embedding;
      weightGradients[at] = backwardOfWeighted<Weight>(choices.weights[at], rows + element,
                                                       outputGradient + token * embedding,
                                                       embedding, rowGradients + element);
    }
}

template <typename Real>
void listByExpert(const Choices<Real>& choices, std::int32_t experts, std::int64_t* begins,
                  std::int64_t* listed) {
  const std::int64_t count = choices.tokens * choices.choices;
  // Counts are kept two places late: so begins[e + 1] is first where expert e begins, and is then
  // moved, choice by choice, to where it ends.
  std::fill_n(begins, experts + 1, 0);
  const auto isKept = [&](std::int64_t at) {
    return choices.slots == nullptr ? choices.experts[at] >= 0 : choices.slots[at] >= 0;
  };
  for (std::int64_t at = 0; at < count; ++at)
    if (isKept(at) && choices.experts[at] + 1 < experts) ++begins[choices.experts[at] + 2];
  std::partial_sum(begins, begins + experts + 1, begins);
  for (std::int64_t at = 0; at < count; ++at)
    if (isKept(at)) listed[begins[choices.experts[at] + 1]++] = at;
}

template <typename Real>
void gatherListed(const Choices<Wide<Real>>& choices, std::span<const std::int64_t> listed,
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

template <typename Real, typename Weight>
void addListedBackward(const Choices<Wide<Real>>& choices, std::span<const std::int64_t> listed,
                       const Real* rows, const Real* outputGradient, std::int64_t embedding,
                       Real* rowGradients, Weight* weightGradients) {
  for (std::int64_t at : listed) {
    weightGradients[at] = backwardOfWeighted<Weight>(
        choices.weights[at], rows, outputGradient + at / choices.choices * embedding, embedding,
        rowGradients);
    rows += embedding;
    rowGradients += embedding;
  }
}

template <typename Real>
void addByToken(const Choices<Wide<Real>>& choices, const std::int64_t* positions, bool weighted,
                const Real* rows, std::int64_t embedding, Real* output) {
  for (std::int64_t token = 0; token < choices.tokens; ++token) {
    const std::int64_t* const own = positions + token * choices.choices;
    if (std::all_of(own, own + choices.choices, [](std::int64_t at) { return at < 0; })) continue;
    const auto terms = [&](auto add) {
      for (std::int32_t c = 0; c < choices.choices; ++c)
        if (own[c] >= 0)
          add(weighted ? choices.weights[token * choices.choices + c] : 1,
              rows + own[c] * embedding);
    };
    sumRows(embedding, true, terms, output + token * embedding);
  }
}

#define MOECCL_PERMUTE(Real)                                                                       \
  template void scatterTokens(const Choices<Wide<Real>>&, const Real*, std::int64_t, std::int64_t, \
                              Real*);                                                              \
  template void clearUnused(const std::int64_t*, std::int64_t, std::int32_t, std::int64_t,         \
                            std::int64_t, std::int64_t, Real*);                                    \
  template void combineTokens(const Choices<Wide<Real>>&, const Real*, std::int64_t, std::int64_t, \
                              Real*);                                                              \
  template void scatterTokensBackward(const Choices<Wide<Real>>&, const Real*, std::int64_t,       \
                                      std::int64_t, Real*);                                        \
  template void gatherListed(const Choices<Wide<Real>>&, std::span<const std::int64_t>,            \
                             const Real*, std::int64_t, Real*);                                    \
  template void addByToken(const Choices<Wide<Real>>&, const std::int64_t*, bool, const Real*,     \
                           std::int64_t, Real*);
MOECCL_PERMUTE(float)
MOECCL_PERMUTE(double)
MOECCL_PERMUTE(NarrowFloat16)
MOECCL_PERMUTE(NarrowBfloat16)
#undef MOECCL_PERMUTE

#define MOECCL_WEIGHTS(Real, Weight)                                                         \
  template void combineTokensBackward(const Choices<Wide<Real>>&, const Real*, const Real*,  \
                                      std::int64_t, std::int64_t, Real*, Weight*);           \
  template void addListedBackward(const Choices<Wide<Real>>&, std::span<const std::int64_t>, \
                                  const Real*, const Real*, std::int64_t, Real*, Weight*);
MOECCL_WEIGHTS(float, float)
MOECCL_WEIGHTS(double, double)
MOECCL_WEIGHTS(NarrowFloat16, NarrowFloat16)
MOECCL_WEIGHTS(NarrowFloat16, float)
MOECCL_WEIGHTS(NarrowBfloat16, NarrowBfloat16)
MOECCL_WEIGHTS(NarrowBfloat16, float)
#undef MOECCL_WEIGHTS

#define MOECCL_LISTS(Real)                                                                      \
  template void listByExpert(const Choices<Real>&, std::int32_t, std::int64_t*, std::int64_t*); \
  template void addListed(const Choices<Real>&, std::span<const std::int64_t>, const Real*,     \
                          std::int64_t, Real*);                                                 \
  template void gatherListedBackward(const Choices<Real>&, std::span<const std::int64_t>,       \
                                     const Real*, std::int64_t, Real*);
MOECCL_LISTS(float)
MOECCL_LISTS(double)
#undef MOECCL_LISTS

}  // namespace moeccl
