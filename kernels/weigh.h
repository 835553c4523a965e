// Rows with weights: what experts made of a token, added up, and the gradients of that.
#pragma once

#include <cstddef>
#include <cstdint>

#include "moeccl/moeccl.h"

namespace moeccl {

// The functions below take float32, float16 or bfloat16; with other types they do nothing. Products
// are fused with the sums that they are added to (std::fma), so that all CPUs and GPUs have the
// same bits.

// dst = weights[0] * sources[0] + weights[stride] * sources[stride] + ..., `count` terms taken in
// this order in float32, rounded once; elementwise over `bytes` bytes, whole elements at any
// address. dst overlaps no source.
void addWeighted(moecclDataType_t datatype, std::byte* dst, const std::byte* const* sources,
                 const float* weights, std::size_t stride, std::size_t count, std::size_t bytes);

// The gradients of weight * row, given that of the product: returns that of the weight, gradient x
// row, summed in float32, and multiplies `gradient` by the weight.
float weighGradient(moecclDataType_t datatype, std::byte* gradient, const std::byte* row,
                    float weight, std::size_t bytes);

// The same of several rows: sets ofWeights [count].
struct WeighedRows {
  moecclDataType_t datatype;
  std::byte* gradients;
  const std::byte* rows;
  std::size_t rowBytes;
  const float* weights;
  std::int64_t count;
};
void weighGradients(const WeighedRows& rows, float* ofWeights);

namespace cuda {

// On a stream of a GPU, whose addresses all are, aligned to elements. Throws Error.
void weighGradients(const WeighedRows& rows, float* ofWeights, void* stream);

}  // namespace cuda
}  // namespace moeccl
