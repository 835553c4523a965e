// Sums of several arrays, in a fixed order, so that results do not depend on who computes them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "moeccl/moeccl.h"

namespace moeccl {

// Bytes per element; 0 for an unknown type.
std::size_t sizeOf(moecclDataType_t datatype);

// dst = sources[0] + sources[stride] + sources[2 stride] + ..., `count` terms added in this order,
// elementwise over `bytes` bytes. 16-bit and 8-bit floats are summed in float32 and rounded once
// (to nearest, ties to even; fp8 saturates to its largest finite value, as training expects);
// integers wrap around. dst may be one of the sources.
void reduceSum(moecclDataType_t datatype, std::byte* dst, const std::byte* const* sources,
               std::size_t stride, std::size_t count, std::size_t bytes);

}  // namespace moeccl
