// One expert, or one shard of it: two matrix products with an activation between them, by BLAS.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/activation.h"

namespace moeccl {

// Row-major; b1 and b2 may be null, which is zero.
struct ExpertWeights {
  const float* w1;  // [embedding][hidden]
  const float* b1;  // [hidden]
  const float* w2;  // [hidden][embedding]
  const float* b2;  // [embedding]
};

// Floats of workspace that expertForward needs, whatever the number of rows.
std::int64_t expertWorkspace(std::int64_t hidden);

// output = activation(input w1 + b1) w2 + b2, for `rows` rows of width `embedding`. output may be
// input, but not overlap it otherwise. embedding and hidden from 1 to 2^31 - 1. BLAS uses as many
// threads as the process has set it to.
void expertForward(Activation activation, const ExpertWeights& weights, std::int64_t embedding,
                   std::int64_t hidden, const float* input, std::int64_t rows,
                   std::span<float> workspace, float* output);

// As ExpertWeights; null: not wanted.
struct ExpertGradients {
  float* w1 = nullptr;
  float* b1 = nullptr;
  float* w2 = nullptr;
  float* b2 = nullptr;
};

// Floats of workspace that expertBackward needs, whatever the number of rows.
std::int64_t expertBackwardWorkspace(std::int64_t hidden);

// The gradients of expertForward of `input`, whose hidden values it computes again: adds those of the
// weights to `gradients`, and sets inputGradient from outputGradient, all [rows][embedding]. The two
// may be the same, but not overlap otherwise.
void expertBackward(Activation activation, const ExpertWeights& weights, std::int64_t embedding,
                    std::int64_t hidden, const float* input, const float* outputGradient,
                    std::int64_t rows, std::span<float> workspace, const ExpertGradients& gradients,
                    float* inputGradient);

}  // namespace moeccl
