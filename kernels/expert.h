// One expert, or one shard of it: two matrix products with an activation between them, by BLAS.
// Real: float, double, or one of narrow.h, which is converted in blocks. inner: innerWidth(hidden).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/activation.h"
#include "kernels/narrow.h"
#include "moeccl/moeccl.h"

namespace moeccl {

// Row-major; b1 and b2 may be null, which is zero.
template <typename Real>
struct ExpertWeights {
  const Real* w1;  // [embedding][inner]
  const Real* b1;  // [inner]
  const Real* w2;  // [hidden][embedding]
  const Real* b2;  // [embedding]
};

// Numbers of workspace that expertForward needs, whatever the number of rows; and that it and
// expertBackward need for narrow elements.
std::int64_t expertWorkspace(std::int64_t inner);
std::int64_t narrowExpertWorkspace(std::int64_t embedding, std::int64_t hidden, std::int64_t inner);

// output = activation(input w1 + b1) w2 + b2, for `rows` rows of width `embedding`. output may be
// input, but not overlap it otherwise. embedding and hidden from 1 to 2^31 - 1. BLAS uses as many
// threads as the process has set it to.
template <typename Real>
void expertForward(Activation activation, const ExpertWeights<Real>& weights,
                   std::int64_t embedding, std::int64_t hidden, const Real* input,
                   std::int64_t rows, std::span<Wide<Real>> workspace, Real* output);

// As ExpertWeights; null: not wanted.
template <typename Real>
struct ExpertGradients {
  Real* w1 = nullptr;
  Real* b1 = nullptr;
  Real* w2 = nullptr;
  Real* b2 = nullptr;
};

// Numbers of workspace that expertBackward needs, whatever the number of rows.
std::int64_t expertBackwardWorkspace(std::int64_t inner);

// The gradients of expertForward of `input`, whose hidden values it computes again: adds those of
// the weights to `gradients`, and sets inputGradient from outputGradient, all [rows][embedding].
// The two may be the same, but not overlap otherwise.
template <typename Real>
void expertBackward(Activation activation, const ExpertWeights<Real>& weights,
                    std::int64_t embedding, std::int64_t hidden, const Real* input,
                    const Real* outputGradient, std::int64_t rows, std::span<Wide<Real>> workspace,
                    const ExpertGradients<Real>& gradients, Real* inputGradient);

namespace cuda {

class Blas;

// The experts of a rank on a GPU: the same for several experts at a time, whose weights lie one
// behind the other.
struct ExpertShape {
  moecclDataType_t datatype;  // of everything: float32, float16 or bfloat16, computed in float32
  Activation activation;      // not swiglu
  std::int64_t experts, embedding, hidden;
};

// Addresses of the GPU, each as in ExpertWeights times [experts]; b1 and b2, and any gradient, may
// be null.
struct StackedWeights {
  const void *w1, *b1, *w2, *b2;
};
struct StackedGradients {
  void *w1 = nullptr, *b1 = nullptr, *w2 = nullptr, *b2 = nullptr;
};

// Bytes of workspace for so many rows of all experts together.
std::size_t expertWorkspace(const ExpertShape& shape, std::int64_t rows);
std::size_t expertBackwardWorkspace(const ExpertShape& shape, std::int64_t rows);

// As expertForward and expertBackward: rows begins[e] to begins[e + 1] belong to expert e. begins
// [experts + 1] is the host's. Neighbours with the same number of rows are computed at once. They
// throw Error.
void expertForward(const ExpertShape& shape, const StackedWeights& weights, const void* input,
                   std::span<const std::int64_t> begins, Blas& blas, std::span<std::byte> workspace,
                   void* output, void* stream);
void expertBackward(const ExpertShape& shape, const StackedWeights& weights, const void* input,
                    const void* outputGradient, std::span<const std::int64_t> begins, Blas& blas,
                    std::span<std::byte> workspace, const StackedGradients& gradients,
                    void* inputGradient, void* stream);

}  // namespace cuda
}  // namespace moeccl
