#include <algorithm>
#include <cmath>
#include <numbers>

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

template <typename Real>
Real gelu(Real x) {
  constexpr Real kHalfSqrt = static_cast<Real>(1 / std::numbers::sqrt2);
  return Real{0.5} * x * (1 + std::erf(x * kHalfSqrt));
}

template <typename Real>
Real geluSlope(Real x) {
  constexpr Real kHalfSqrt = static_cast<Real>(1 / std::numbers::sqrt2);
  constexpr Real kPeak = static_cast<Real>(std::numbers::inv_sqrtpi / std::numbers::sqrt2);
  return Real{0.5} * (1 + std::erf(x * kHalfSqrt)) + x * kPeak * std::exp(Real{-0.5} * x * x);
}

template <typename Real, typename Function>
void forEach(const Real* bias, std::int64_t rows, std::int64_t width, Real* values,
             Function function) {
  for (std::int64_t row = 0; row < rows; ++row, values += width)
    for (std::int64_t i = 0; i < width; ++i)
      values[i] = function(bias == nullptr ? values[i] : values[i] + bias[i]);
}

// gradients *= slope(values + bias).
template <typename Real, typename Function>
void multiplyBySlope(const Real* bias, std::int64_t rows, std::int64_t columns, const Real* values,
                     Real* gradients, Function slope) {
  for (std::int64_t row = 0; row < rows; ++row, values += columns, gradients += columns)
    for (std::int64_t i = 0; i < columns; ++i)
      gradients[i] *= slope(bias == nullptr ? values[i] : values[i] + bias[i]);
}

}  // namespace

template <typename Real>
void biasActivation(Activation activation, const Real* bias, std::int64_t rows, std::int64_t width,
                    Real* values) {
  if (activation == Activation::gelu)
    forEach(bias, rows, width, values, gelu<Real>);
  else  // keeps NaN, unlike std::max
    forEach(bias, rows, width, values, [](Real x) { return x < 0 ? Real{0} : x; });
}

std::int64_t expertWorkspace(std::int64_t hidden) { return kBlockRows * hidden; }

template <typename Real>
void expertForward(Activation activation, const ExpertWeights<Real>& weights,
                   std::int64_t embedding, std::int64_t hidden, const Real* input,
                   std::int64_t rows, std::span<Real> workspace, Real* output) {
  for (std::int64_t begin = 0; begin < rows; begin += kBlockRows) {
    const std::int64_t count = std::min(kBlockRows, rows - begin);
    Real* const result = output + begin * embedding;
    multiply(count, hidden, embedding, input + begin * embedding, weights.w1, workspace.data());
    biasActivation(activation, weights.b1, count, hidden, workspace.data());
    multiply(count, embedding, hidden, workspace.data(), weights.w2, result);
    if (weights.b2 != nullptr)
      forEach(weights.b2, count, embedding, result, [](Real x) { return x; });
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
    if (activation == Activation::gelu)
      multiplyBySlope(weights.b1, count, hidden, inner, innerGradient, geluSlope<Real>);
    else
      multiplyBySlope(weights.b1, count, hidden, inner, innerGradient,
                      [](Real x) { return x <= 0 ? Real{0} : Real{1}; });
    biasActivation(activation, weights.b1, count, hidden, inner);
    addTransposedProduct(hidden, embedding, count, inner, out, gradients.w2);
    addRows(count, embedding, out, gradients.b2);
    addTransposedProduct(embedding, hidden, count, in, innerGradient, gradients.w1);
    addRows(count, hidden, innerGradient, gradients.b1);
    multiplyByTransposed(count, embedding, hidden, innerGradient, weights.w1,
                         inputGradient + begin * embedding);
  }
}

template void biasActivation(Activation, const float*, std::int64_t, std::int64_t, float*);
template void expertForward(Activation, const ExpertWeights<float>&, std::int64_t, std::int64_t,
                            const float*, std::int64_t, std::span<float>, float*);
template void expertBackward(Activation, const ExpertWeights<float>&, std::int64_t, std::int64_t,
                             const float*, const float*, std::int64_t, std::span<float>,
                             const ExpertGradients<float>&, float*);
template void biasActivation(Activation, const double*, std::int64_t, std::int64_t, double*);
template void expertForward(Activation, const ExpertWeights<double>&, std::int64_t, std::int64_t,
                            const double*, std::int64_t, std::span<double>, double*);
template void expertBackward(Activation, const ExpertWeights<double>&, std::int64_t, std::int64_t,
                             const double*, const double*, std::int64_t, std::span<double>,
                             const ExpertGradients<double>&, double*);

}  // namespace moeccl
