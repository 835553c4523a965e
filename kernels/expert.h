// One expert, or one shard of it: two matrix products with an activation between them, by BLAS.
// Real: float or double.
#pragma once

#include <cstdint>
#include <span>

namespace moeccl {

enum class Activation { gelu, relu };

// Row-major; b1 and b2 may be null, which is zero.
template <typename Real>
struct ExpertWeights {
  const Real* w1;  // [embedding][hidden]
  const Real* b1;  // [hidden]
  const Real* w2;  // [hidden][embedding]
  const Real* b2;  // [embedding]
};

// rows [rows][width] = activation(rows + bias), in place. bias [width] may be null. gelu is
// x (1 + erf(x / sqrt 2)) / 2.
template <typename Real>
void biasActivation(Activation activation, const Real* bias, std::int64_t rows, std::int64_t width,
                    Real* values);

// Numbers of workspace that expertForward needs, whatever the number of rows.
std::int64_t expertWorkspace(std::int64_t hidden);

// output = activation(input w1 + b1) w2 + b2, for `rows` rows of width `embedding`. output may be
// input, but not overlap it otherwise. embedding and hidden from 1 to 2^31 - 1. BLAS uses as many
// threads as the process has set it to.
template <typename Real>
void expertForward(Activation activation, const ExpertWeights<Real>& weights,
                   std::int64_t embedding, std::int64_t hidden, const Real* input,
                   std::int64_t rows, std::span<Real> workspace, Real* output);

// As ExpertWeights; null: not wanted.
template <typename Real>
struct ExpertGradients {
  Real* w1 = nullptr;
  Real* b1 = nullptr;
  Real* w2 = nullptr;
  Real* b2 = nullptr;
};

// Numbers of workspace that expertBackward needs, whatever the number of rows.
std::int64_t expertBackwardWorkspace(std::int64_t hidden);

// The gradients of expertForward of `input`, whose hidden values it computes again: adds those of the
// weights to `gradients`, and sets inputGradient from outputGradient, all [rows][embedding]. The two
// may be the same, but not overlap otherwise.
template <typename Real>
void expertBackward(Activation activation, const ExpertWeights<Real>& weights,
                    std::int64_t embedding, std::int64_t hidden, const Real* input,
                    const Real* outputGradient, std::int64_t rows, std::span<Real> workspace,
                    const ExpertGradients<Real>& gradients, Real* inputGradient);

}  // namespace moeccl
