// Rows of a few matrices by lists of them: what routes move and add up on a GPU, thousands of
// rows in one launch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/device.h"
#include "moeccl/moeccl.h"

namespace moeccl {

inline constexpr int kRowMatrices = 3;

struct RowAt {
  std::int32_t matrix, row;

  bool operator==(const RowAt&) const = default;
};

// Rows of all of them are equally long.
struct RowMatrices {
  std::byte* at[kRowMatrices];
  std::size_t rowBytes;

  MOECCL_DEVICE std::byte* matrix(std::int32_t index) const {
    return index == 0 ? at[0] : index == 1 ? at[1] : at[2];
  }
  MOECCL_DEVICE std::byte* row(RowAt it) const {
    return matrix(it.matrix) + static_cast<std::size_t>(it.row) * rowBytes;
  }
};

// By matrix and row; 1 beyond the lists.
struct RowWeights {
  const float* of[kRowMatrices] = {};
  std::int64_t counts[kRowMatrices] = {};

  MOECCL_DEVICE float at(RowAt it) const {
    const bool isFirst = it.matrix == 0, isSecond = it.matrix == 1;
    if (it.row >= (isFirst ? counts[0] : isSecond ? counts[1] : counts[2])) return 1;
    return (isFirst ? of[0] : isSecond ? of[1] : of[2])[it.row];
  }
};

struct RowCopies {
  const RowAt *from, *to;
  std::int64_t count;
};

// Row to[i] = the sum of terms [begins[i], begins[i + 1]); zeros where there are none.
struct RowSums {
  const std::int32_t* begins;
  const RowAt *terms, *to;
  std::int64_t count;
};

namespace cuda {

// On a stream of a GPU, whose addresses all are. No row that is written is read, or written twice,
// in one launch. Both throw Error.
void copyRows(const RowMatrices& matrices, const RowCopies& copies, void* stream);
// Adds up rows as addWeighted (weigh.h) does: in the order of the terms, in float32, rounded once.
// Elements are float32, float16 or bfloat16, and matrices are aligned to them.
void addRows(moecclDataType_t datatype, const RowMatrices& matrices, const RowSums& sums,
             const RowWeights& weights, void* stream);

}  // namespace cuda
}  // namespace moeccl
