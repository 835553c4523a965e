// One expert, or one shard of it: two matrix products with an activation between them, by BLAS.
#pragma once

#include <cstdint>
#include <span>

namespace moeccl {

enum class Activation { gelu, relu };

// Row-major; b1 and b2 may be null, which is zero.
struct ExpertWeights {
  const float* w1;  // [embedding][hidden]
  const float* b1;  // [hidden]
  const float* w2;  // [hidden][embedding]
  const float* b2;  // [embedding]
};

// rows [rows][width] = activation(rows + bias), in place. bias [width] may be null. gelu is
// x (1 + erf(x / sqrt 2)) / 2.
void biasActivation(Activation activation, const float* bias, std::int64_t rows, std::int64_t width,
                    float* values);

// Floats of workspace that expertForward needs, whatever the number of rows.
std::int64_t expertWorkspace(std::int64_t hidden);

// output = activation(input w1 + b1) w2 + b2, for `rows` rows of width `embedding`. output may be
// input, but not overlap it otherwise. embedding and hidden from 1 to 2^31 - 1. BLAS uses as many
// threads as the process has set it to.
void expertForward(Activation activation, const ExpertWeights& weights, std::int64_t embedding,
                   std::int64_t hidden, const float* input, std::int64_t rows,
                   std::span<float> workspace, float* output);

}  // namespace moeccl
