#include <algorithm>

#include "kernels/blas.h"
#include "kernels/expert.h"

namespace moeccl {
namespace {

// Rows that go through both products together: enough for BLAS to run at full speed, few enough
// that their hidden values are small beside the tokens.
constexpr std::int64_t kBlockRows = 256;

// c [rows][columns] = a [rows][inner] b [inner][columns].
template <typename Real>
void multiply(std::int64_t rows, std::int64_t columns, std::int64_t inner, const Real* a,
              const Real* b, Real* c) {
  blas::multiply(CblasNoTrans, CblasNoTrans, rows, columns, inner, a, b, Real{0}, c);
}

// c [rows][columns] = a [rows][inner] b^T, of b [columns][inner].
template <typename Real>
void multiplyByTransposed(std::int64_t rows, std::int64_t columns, std::int64_t inner,
                          const Real* a, const Real* b, Real* c) {
  blas::multiply(CblasNoTrans, CblasTrans, rows, columns, inner, a, b, Real{0}, c);
}

// c [rows][columns] += a^T b, of a [inner][rows] and b [inner][columns]. c may be null: not wanted.
template <typename Real>
void addTransposedProduct(std::int64_t rows, std::int64_t columns, std::int64_t inner,
                          const Real* a, const Real* b, Real* c) {
  if (c != nullptr)
    blas::multiply(CblasTrans, CblasNoTrans, rows, columns, inner, a, b, Real{1}, c);
}

// sums [columns] += the rows of values [rows][columns]. sums may be null: not wanted.
template <typename Real>
void addRows(std::int64_t rows, std::int64_t columns, const Real* values, Real* sums) {
  for (std::int64_t row = 0; row < rows && sums != nullptr; ++row, values += columns)
    for (std::int64_t i = 0; i < columns; ++i) sums[i] += values[i];
}

// Each row of values [rows][columns] += terms [columns]. terms may be null: zero.
template <typename Real>
void addToRows(std::int64_t rows, std::int64_t columns, const Real* terms, Real* values) {
  for (std::int64_t row = 0; row < rows && terms != nullptr; ++row, values += columns)
    for (std::int64_t i = 0; i < columns; ++i) values[i] += terms[i];
}

}  // namespace

std::int64_t expertWorkspace(std::int64_t hidden) { return kBlockRows * hidden; }

template <typename Real>
void expertForward(Activation activation, const ExpertWeights<Real>& weights,
                   std::int64_t embedding, std::int64_t hidden, const Real* input,
                   std::int64_t rows, std::span<Real> workspace, Real* output) {
  for (std::int64_t begin = 0; begin < rows; begin += kBlockRows) {
    const std::int64_t count = std::min(kBlockRows, rows - begin);
    Real* const result = output + begin * embedding;
    multiply(count, hidden, embedding, input + begin * embedding, weights.w1, workspace.data());
    activate(activation, weights.b1, count, hidden, workspace.data());
    multiply(count, embedding, hidden, workspace.data(), weights.w2, result);
    addToRows(count, embedding, weights.b2, result);
  }
}

std::int64_t expertBackwardWorkspace(std::int64_t hidden) { return 2 * kBlockRows * hidden; }

template <typename Real>
void expertBackward(Activation activation, const ExpertWeights<Real>& weights,
                    std::int64_t embedding, std::int64_t hidden, const Real* input,
                    const Real* outputGradient, std::int64_t rows, std::span<Real> workspace,
                    const ExpertGradients<Real>& gradients, Real* inputGradient) {
  Real* const inner = workspace.data();
  Real* const innerGradient = inner + kBlockRows * hidden;
  for (std::int64_t begin = 0; begin < rows; begin += kBlockRows) {
    const std::int64_t count = std::min(kBlockRows, rows - begin);
    const Real* const in = input + begin * embedding;
    const Real* const out = outputGradient + begin * embedding;
    multiply(count, hidden, embedding, in, weights.w1, inner);
    multiplyByTransposed(count, hidden, embedding, out, weights.w2, innerGradient);
    activateBackward(activation, weights.b1, count, hidden, inner, innerGradient);
    addTransposedProduct(hidden, embedding, count, inner, out, gradients.w2);
    addRows(count, embedding, out, gradients.b2);
    addTransposedProduct(embedding, hidden, count, in, innerGradient, gradients.w1);
    addRows(count, hidden, innerGradient, gradients.b1);
    multiplyByTransposed(count, embedding, hidden, innerGradient, weights.w1,
                         inputGradient + begin * embedding);
  }
}

template void expertForward(Activation, const ExpertWeights<float>&, std::int64_t, std::int64_t,
                            const float*, std::int64_t, std::span<float>, float*);
template void expertBackward(Activation, const ExpertWeights<float>&, std::int64_t, std::int64_t,
                             const float*, const float*, std::int64_t, std::span<float>,
                             const ExpertGradients<float>&, float*);
template void expertForward(Activation, const ExpertWeights<double>&, std::int64_t, std::int64_t,
                            const double*, std::int64_t, std::span<double>, double*);
template void expertBackward(Activation, const ExpertWeights<double>&, std::int64_t, std::int64_t,
                             const double*, const double*, std::int64_t, std::span<double>,
                             const ExpertGradients<double>&, double*);

}  // namespace moeccl
