// What the kernels compute, by the plainest loops that do: the reference for their fast versions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "moeccl/moeccl.h"

namespace moeccl {

// A float narrower than float32, as kernels/small_float.h describes it.
struct NarrowFormat {
  int exponent, mantissa;  // bits
  bool finite;             // no infinity, and one NaN of all ones
  bool saturates;          // what is too large becomes the largest finite value
};
// Null where `datatype` is none.
const NarrowFormat* narrowFormat(moecclDataType_t datatype);

float plainDecode(const NarrowFormat& format, unsigned bits);
unsigned plainEncode(const NarrowFormat& format, float value);

// As reduce of kernels/reduce.h.
void plainReduce(moecclRedOp_t op, moecclDataType_t datatype, std::byte* dst,
                 const std::byte* const* sources, std::size_t stride, std::size_t count,
                 std::size_t bytes);

// As copyBlocks of kernels/copy.h.
void plainCopyBlocks(std::byte* dst, std::ptrdiff_t dstStride, const std::byte* src,
                     std::ptrdiff_t srcStride, std::size_t bytes, std::int64_t count);

}  // namespace moeccl
