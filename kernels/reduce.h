// Reductions of several arrays to one, in a fixed order, so that results do not depend on who
// computes them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "moeccl/moeccl.h"

namespace moeccl {

// Bytes per element; 0 for an unknown type.
std::size_t sizeOf(moecclDataType_t datatype);

// dst = sources[0] op sources[stride] op sources[2 stride] ..., `count` terms taken in this order,
// elementwise over `bytes` bytes, whole elements at any address. dst may be one of the sources, but
// not overlap one otherwise. Unknown types and operators do nothing, nor does moecclAvg: that is a
// sum and divide().
//
// 16-bit and 8-bit floats are decoded to float32 and encoded once, at the end: rounded to nearest,
// ties to even; fp8 saturates to its largest finite value, as training expects. Integer sums wrap
// around, products too. The largest or smallest of floats is NaN if any of them is, and of +0 and
// -0 the later.
void reduce(moecclRedOp_t op, moecclDataType_t datatype, std::byte* dst,
            const std::byte* const* sources, std::size_t stride, std::size_t count,
            std::size_t bytes);

// Divides each element of whole ones at any address, as a sum of `divisor` terms becomes their
// average: integers towards zero, small floats in float32. Unknown types do nothing.
void divide(moecclDataType_t datatype, std::byte* data, std::size_t bytes, std::int64_t divisor);

namespace cuda {

// The most terms of one reduction.
constexpr std::size_t kMaxTerms = 500;

// The same on a stream of a GPU, of kMaxTerms at most. `sources`: a host array of device addresses,
// read before it returns. Which NaN a sum is may differ. Throws Error.
void reduce(moecclRedOp_t op, moecclDataType_t datatype, std::byte* dst,
            const std::byte* const* sources, std::size_t stride, std::size_t count,
            std::size_t bytes, void* stream);

void divide(moecclDataType_t datatype, std::byte* data, std::size_t bytes, std::int64_t divisor,
            void* stream);

}  // namespace cuda
}  // namespace moeccl
