// What the threads of a GPU do to move tokens, rows of memory, to places and back. Some threads
// work on a row together, each on vectors that lie rowThreads apart. Nothing is added by two
// threads, so that results do not depend on their order. Nothing here needs a GPU, so that it is
// tested on hosts.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/device.h"
#include "kernels/lanes.h"
#include "kernels/permute.h"
#include "kernels/vectors.h"

namespace moeccl {

constexpr std::int64_t kRowBlockThreads = 256;

struct RowShape {
  std::int64_t vectors;  // of a row
  std::int64_t rowThreads;
  int width;  // bytes of a vector

  std::int64_t blockRows() const { return kRowBlockThreads / rowThreads; }
};

// Vectors that a thread has in flight.
constexpr int kRowVectors = 4;

// addresses: of all matrices, or'ed; or what else no vector may be wider than.
inline RowShape rowShape(std::uint64_t addresses, std::uint64_t rowBytes) {
  const int width = widthOf(addresses, rowBytes);
  const auto vectors = static_cast<std::int64_t>(rowBytes / width);
  std::int64_t threads = 1;
  while (threads < kRowBlockThreads && threads * kRowVectors < vectors) threads *= 2;
  return {vectors, threads, width};
}

// The row of a choice; -1: dropped.
MOECCL_DEVICE inline std::int64_t rowOf(const Choices<float>& choices, std::int64_t at,
                                        std::int64_t expertStride) {
  const std::int64_t slot = choices.slots[at];
  return slot < 0 ? -1 : choices.experts[at] * expertStride + slot;
}

// Calls function(first, count) for this thread's vectors first, first + rowThreads, ..., some at a
// time.
template <typename Function>
MOECCL_DEVICE void eachVectors(const RowShape& shape, std::int64_t thread, Function function) {
  for (std::int64_t first = thread; first < shape.vectors;
       first += kRowVectors * shape.rowThreads) {
    const std::int64_t left = (shape.vectors - first - 1) / shape.rowThreads + 1;
    function(first, static_cast<int>(left < kRowVectors ? left : kRowVectors));
  }
}

template <typename Access>
struct Row {
  Access vectors[kRowVectors] = {};

  MOECCL_DEVICE void load(const RowShape& shape, const std::byte* matrix, std::int64_t row,
                          std::int64_t first, int count) {
    const auto* const from = reinterpret_cast<const Access*>(matrix) + row * shape.vectors + first;
    for (int i = 0; i < kRowVectors; ++i)
      if (i < count) vectors[i] = from[i * shape.rowThreads];
  }
  MOECCL_DEVICE void store(const RowShape& shape, std::byte* matrix, std::int64_t row,
                           std::int64_t first, int count) const {
    auto* const to = reinterpret_cast<Access*>(matrix) + row * shape.vectors + first;
    for (int i = 0; i < kRowVectors; ++i)
      if (i < count) to[i * shape.rowThreads] = vectors[i];
  }
};

// Floats that are loaded, added to and stored as vectors of a format.
template <typename Format, typename Access>
struct Sums {
  using Bits = typename Format::Bits;
  static constexpr int kElements = sizeof(Access) / sizeof(Bits);
  float values[kRowVectors * kElements];

  MOECCL_DEVICE void clear(float to = 0) {
    for (float& value : values) value = to;
  }
  // Fused, as weigh.h has it.
  MOECCL_DEVICE void add(float weight, const Row<Access>& row, int count) {
    for (int i = 0; i < kRowVectors; ++i) {
      if (i >= count) continue;
      Bits elements[kElements];
      std::memcpy(elements, &row.vectors[i], sizeof elements);
      for (int e = 0; e < kElements; ++e)
        values[i * kElements + e] =
            std::fma(weight, Format::decode(elements[e]), values[i * kElements + e]);
    }
  }
  MOECCL_DEVICE Row<Access> row() const {
    Row<Access> row;
    for (int i = 0; i < kRowVectors; ++i) {
      Bits elements[kElements];
      for (int e = 0; e < kElements; ++e) elements[e] = Format::encode(values[i * kElements + e]);
      std::memcpy(&row.vectors[i], elements, sizeof elements);
    }
    return row;
  }
};

// As scatterTokens, of one token.
template <typename Access>
MOECCL_DEVICE void scatterToken(const RowShape& shape, const Choices<float>& choices,
                                const std::byte* input, std::int64_t expertStride, std::byte* rows,
                                std::int64_t token, std::int64_t thread) {
  eachVectors(shape, thread, [&](std::int64_t first, int count) {
    Row<Access> values;
    values.load(shape, input, token, first, count);
    for (std::int32_t c = 0; c < choices.choices; ++c) {
      const std::int64_t row = rowOf(choices, token * choices.choices + c, expertStride);
      if (row >= 0) values.store(shape, rows, row, first, count);
    }
  });
}

// Row `target` of one matrix = row `source` of another.
template <typename Access>
MOECCL_DEVICE void copyRow(const RowShape& shape, const std::byte* from, std::int64_t source,
                           std::byte* to, std::int64_t target, std::int64_t thread) {
  eachVectors(shape, thread, [&](std::int64_t first, int count) {
    Row<Access> values;
    values.load(shape, from, source, first, count);
    values.store(shape, to, target, first, count);
  });
}

// As combineTokens, of one token; without kWeighted as scatterTokensBackward.
template <typename Format, typename Access, bool kWeighted>
MOECCL_DEVICE void gatherToken(const RowShape& shape, const Choices<float>& choices,
                               const std::byte* rows, std::int64_t expertStride, std::byte* output,
                               std::int64_t token, std::int64_t thread) {
  eachVectors(shape, thread, [&](std::int64_t first, int count) {
    Sums<Format, Access> sums;
    sums.clear();
    for (std::int32_t c = 0; c < choices.choices; ++c) {
      const std::int64_t at = token * choices.choices + c;
      const std::int64_t row = rowOf(choices, at, expertStride);
      if (row < 0) continue;
      Row<Access> values;
      values.load(shape, rows, row, first, count);
      sums.add(kWeighted ? choices.weights[at] : 1.0f, values, count);
    }
    sums.row().store(shape, output, token, first, count);
  });
}

// As addListed, of one token; without kWeighted as gatherListedBackward.
template <typename Format, typename Access, bool kWeighted>
MOECCL_DEVICE void addListedToken(const RowShape& shape, const Choices<float>& choices,
                                  const cuda::ListedRows& listed, const std::byte* rows,
                                  std::byte* output, std::int64_t token, std::int64_t thread) {
  const std::int64_t begin = token * choices.choices;
  const auto rowOfChoice = [&](std::int32_t c) {
    const std::int64_t row = listed.positions[begin + c] - listed.begin;
    return row < listed.count ? row : -1;  // below 0 where the position is
  };
  bool any = false;
  for (std::int32_t c = 0; c < choices.choices; ++c) any |= rowOfChoice(c) >= 0;
  if (!any) return;
  eachVectors(shape, thread, [&](std::int64_t first, int count) {
    Row<Access> values;
    Sums<Format, Access> sums;
    sums.clear();
    values.load(shape, output, token, first, count);
    sums.add(1, values, count);
    for (std::int32_t c = 0; c < choices.choices; ++c) {
      const std::int64_t row = rowOfChoice(c);
      if (row < 0) continue;
      values.load(shape, rows, row, first, count);
      sums.add(kWeighted ? choices.weights[begin + c] : 1.0f, values, count);
    }
    sums.row().store(shape, output, token, first, count);
  });
}

// The gradients of weight * row, by some lanes: sets row `place` of rowGradients; returns the
// weight's.
template <typename Format, typename Access, typename Lanes>
MOECCL_DEVICE float weightedBackward(const Lanes& lanes, const RowShape& shape, float weight,
                                     const std::byte* rows, std::int64_t place,
                                     const std::byte* outputGradient, std::int64_t token,
                                     std::byte* rowGradients) {
  const RowShape mine{shape.vectors, Lanes::kCount, shape.width};
  using Bits = typename Format::Bits;
  constexpr int kElements = sizeof(Access) / sizeof(Bits);
  float product = 0;
  eachVectors(mine, lanes.index(), [&](std::int64_t first, int count) {
    Row<Access> row, gradient;
    row.load(mine, rows, place, first, count);
    gradient.load(mine, outputGradient, token, first, count);
    Sums<Format, Access> scaled;
    scaled.clear();
    scaled.add(weight, gradient, count);
    for (int i = 0; i < kRowVectors; ++i) {
      if (i >= count) continue;
      Bits a[kElements], b[kElements];
      std::memcpy(a, &row.vectors[i], sizeof a);
      std::memcpy(b, &gradient.vectors[i], sizeof b);
      for (int e = 0; e < kElements; ++e)
        product = std::fma(Format::decode(a[e]), Format::decode(b[e]), product);
    }
    scaled.row().store(mine, rowGradients, place, first, count);
  });
  return lanes.sum(product);
}

// As combineTokensBackward, of one choice.
template <typename Format, typename Access, typename Lanes>
MOECCL_DEVICE void choiceBackward(const Lanes& lanes, const RowShape& shape,
                                  const Choices<float>& choices, const std::byte* rows,
                                  const std::byte* outputGradient, std::int64_t expertStride,
                                  std::byte* rowGradients, typename Format::Bits* weightGradients,
                                  std::int64_t at) {
  const std::int64_t row = rowOf(choices, at, expertStride);
  float gradient = 0;
  if (row >= 0)
    gradient = weightedBackward<Format, Access>(lanes, shape, choices.weights[at], rows, row,
                                                outputGradient, at / choices.choices, rowGradients);
  if (lanes.index() == 0) weightGradients[at] = Format::encode(gradient);
}

template <typename Access>
MOECCL_DEVICE void clearRow(const RowShape& shape, std::byte* rows, std::int64_t row,
                            std::int64_t thread) {
  eachVectors(shape, thread, [&](std::int64_t first, int count) {
    Row<Access>{}.store(shape, rows, row, first, count);
  });
}

}  // namespace moeccl
