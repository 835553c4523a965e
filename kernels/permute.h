// Moves tokens to the places of their experts and back. `rows` is a matrix of places: expert e has
// its place s in row e * expertStride + s, each row one token wide. Real: float, double, or one of
// narrow.h. Sums are made in Wide<Real>.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/device.h"
#include "kernels/narrow.h"
#include "moeccl/moeccl.h"

namespace moeccl {

// The choices of some tokens, [tokens][choices] each, as gates/gate.h makes them.
template <typename Real>
struct Choices {
  const std::int32_t* experts;
  const std::int64_t* slots;  // within the expert; -1: dropped. Null, for lists alone: none is
  const Real* weights;
  std::int64_t tokens;
  std::int32_t choices;
};

// Copies each token of input [tokens][embedding] to the places of its choices.
template <typename Real>
void scatterTokens(const Choices<Wide<Real>>& choices, const Real* input, std::int64_t embedding,
                   std::int64_t expertStride, Real* rows);

// Zeroes the places that no token has: per capacity group and expert those from used
// [groups][experts] up to groupSlots.
template <typename Real>
void clearUnused(const std::int64_t* used, std::int64_t groups, std::int32_t experts,
                 std::int64_t groupSlots, std::int64_t embedding, std::int64_t expertStride,
                 Real* rows);

// output [tokens][embedding] = sum over a token's choices, in their order, of weight * row; a
// dropped choice adds nothing.
template <typename Real>
void combineTokens(const Choices<Wide<Real>>& choices, const Real* rows, std::int64_t embedding,
                   std::int64_t expertStride, Real* output);

// The gradient of scatterTokens: inputGradient [tokens][embedding] = the sum of rowGradients over
// the places of a token's choices.
template <typename Real>
void scatterTokensBackward(const Choices<Wide<Real>>& choices, const Real* rowGradients,
                           std::int64_t embedding, std::int64_t expertStride, Real* inputGradient);

// The gradients of combineTokens, of the same rows: rowGradients = weight * outputGradient, in
// places that a choice has, and weightGradients [tokens][choices], 0 for a dropped choice.
// Weight: Real or Wide<Real>.
template <typename Real, typename Weight>
void combineTokensBackward(const Choices<Wide<Real>>& choices, const Real* rows,
                           const Real* outputGradient, std::int64_t embedding,
                           std::int64_t expertStride, Real* rowGradients, Weight* weightGradients);

// Where it is written how many choices each expert has, in blocks of `block` experts that begin
// `distance` apart, those of the next group `block` behind; and where the counts of one group are
// added to [experts]. Nowhere where they are null.
struct ExpertCounts {
  std::int64_t* counts = nullptr;
  std::int64_t block = 1, distance = 1;
  double* sums = nullptr;
  std::int64_t sumsGroup = 0;

  MOECCL_DEVICE void set(std::int64_t group, std::int64_t expert, std::int64_t count) const {
    if (counts != nullptr)
      counts[group * block + expert / block * distance + expert % block] = count;
    if (sums != nullptr && group == sumsGroup) sums[expert] += static_cast<double>(count);
  }
};

// Without places between: the choices that have one, expert by expert, each choice by its index in
// [tokens][choices], in token order. begins [experts + 1]: where each expert's are in `listed`,
// which has room for all choices.
template <typename Real>
void listByExpert(const Choices<Real>& choices, std::int32_t experts, std::int64_t* begins,
                  std::int64_t* listed);

// rows [listed][embedding]: each choice's token of input [tokens][embedding].
template <typename Real>
void gatherListed(const Choices<Wide<Real>>& choices, std::span<const std::int64_t> listed,
                  const Real* input, std::int64_t embedding, Real* rows);

// Adds weight * row to each choice's token of output [tokens][embedding]; float or double.
template <typename Real>
void addListed(const Choices<Real>& choices, std::span<const std::int64_t> listed, const Real* rows,
               std::int64_t embedding, Real* output);

// The gradient of gatherListed: adds each row to its choice's token of inputGradient
// [tokens][embedding]; float or double.
template <typename Real>
void gatherListedBackward(const Choices<Real>& choices, std::span<const std::int64_t> listed,
                          const Real* rowGradients, std::int64_t embedding, Real* inputGradient);

// Both in one, a token's choices in their order, so that a sum is rounded once: adds weight * row,
// or row itself, of those that have a position, row positions[at], and of no others (-1).
template <typename Real>
void addByToken(const Choices<Wide<Real>>& choices, const std::int64_t* positions, bool weighted,
                const Real* rows, std::int64_t embedding, Real* output);

// The gradients of addListed, of the same rows: sets rowGradients [listed][embedding], and
// weightGradients [tokens][choices] of the choices listed. Weight: Real or Wide<Real>.
template <typename Real, typename Weight>
void addListedBackward(const Choices<Wide<Real>>& choices, std::span<const std::int64_t> listed,
                       const Real* rows, const Real* outputGradient, std::int64_t embedding,
                       Real* rowGradients, Weight* weightGradients);

// The same on a stream of a GPU, whose addresses all are, those in `choices` and `listed` too. Rows
// may be of any datatype where they are only moved, tokenBytes each; where something is computed
// they are float32, float16 or bfloat16, aligned to it, gradients of weights too, and sums are made
// in float32. All throw Error.
namespace cuda {

void scatterTokens(const Choices<float>& choices, const void* input, std::size_t tokenBytes,
                   std::int64_t expertStride, void* rows, void* stream);
void clearUnused(const std::int64_t* used, std::int64_t groups, std::int32_t experts,
                 std::int64_t groupSlots, std::size_t tokenBytes, std::int64_t expertStride,
                 void* rows, void* stream);
void combineTokens(moecclDataType_t datatype, const Choices<float>& choices, const void* rows,
                   std::int64_t embedding, std::int64_t expertStride, void* output, void* stream);
void scatterTokensBackward(moecclDataType_t datatype, const Choices<float>& choices,
                           const void* rowGradients, std::int64_t embedding,
                           std::int64_t expertStride, void* inputGradient, void* stream);
void combineTokensBackward(moecclDataType_t datatype, const Choices<float>& choices,
                           const void* rows, const void* outputGradient, std::int64_t embedding,
                           std::int64_t expertStride, void* rowGradients, void* weightGradients,
                           void* stream);

// Several lists at once, one behind the other, of so many groups of equally many tokens: begins
// [groups][experts + 1] counts over all of them, `listed` has indices within the group. positions
// [tokens][choices]: where `listed` has each choice; -1: nowhere. The workspace, of so many bytes,
// begins at a multiple of 8 and is free again when the stream is past the call.
std::size_t listByExpertWorkspace(std::int64_t choices, std::int64_t groups, std::int32_t experts);
void listByExpert(const Choices<float>& choices, std::int64_t groups, std::int32_t experts,
                  std::int64_t* begins, std::int64_t* listed, std::int64_t* positions,
                  const ExpertCounts& counts, std::span<std::byte> workspace, void* stream);

// The choices that have positions from `begin` on, `count` of them: row i of a matrix belongs to
// position begin + i.
struct ListedRows {
  const std::int64_t* positions;  // [tokens][choices]
  std::int64_t begin, count;
};

// As gatherListed, of several lists of choices, so many per token, at once.
struct GatheredRows {
  std::span<const std::int64_t> listed;
  const void* input;
  void* rows;
};
void gatherListed(std::int32_t choices, std::span<const GatheredRows> parts, std::size_t tokenBytes,
                  void* stream);

// Rows are added to a token in the order of its choices.
void addListed(moecclDataType_t datatype, const Choices<float>& choices, const ListedRows& listed,
               const void* rows, std::int64_t embedding, void* output, void* stream);
void gatherListedBackward(moecclDataType_t datatype, const Choices<float>& choices,
                          const ListedRows& listed, const void* rowGradients,
                          std::int64_t embedding, void* inputGradient, void* stream);
void addListedBackward(moecclDataType_t datatype, const Choices<float>& choices,
                       std::span<const std::int64_t> listed, const void* rows,
                       const void* outputGradient, std::int64_t embedding, void* rowGradients,
                       void* weightGradients, void* stream);

}  // namespace cuda
}  // namespace moeccl
