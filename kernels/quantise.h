// Rows of float8 with scales: what a route moves at half the bytes of 16-bit rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "moeccl/moeccl.h"

namespace moeccl {

// Elements that share a scale.
inline constexpr std::size_t kScaled = 128;

// A row of float8: its elements, then a float32 scale for each kScaled of them. An element is worth
// its value times the scale, which is the largest magnitude of the group by the largest finite
// value of the type; 0 for a group of zeros, and NaN where the group has a NaN or an infinity.
constexpr std::size_t quantisedBytes(std::size_t elements) {
  return elements + elements / kScaled * sizeof(float);
}

// `elements` of each row: a multiple of kScaled. from: float32, float16 or bfloat16; to: float8e4m3
// or float8e5m2; others do nothing. Any addresses.
void quantise(moecclDataType_t to, moecclDataType_t from, const std::byte* rows,
              std::size_t rowCount, std::size_t elements, std::byte* quantised);
// Back: exactly what the elements are worth in float32, rounded to the type.
void dequantise(moecclDataType_t from, moecclDataType_t to, const std::byte* quantised,
                std::size_t rowCount, std::size_t elements, std::byte* rows);

namespace cuda {

// The same on a stream of a GPU, whose addresses all are, aligned to elements, and those of float8
// to scales. Which NaN it is may differ. Both throw Error.
void quantise(moecclDataType_t to, moecclDataType_t from, const std::byte* rows,
              std::size_t rowCount, std::size_t elements, std::byte* quantised, void* stream);
void dequantise(moecclDataType_t from, moecclDataType_t to, const std::byte* quantised,
                std::size_t rowCount, std::size_t elements, std::byte* rows, void* stream);

}  // namespace cuda
}  // namespace moeccl
