#include <cblas.h>

#include <algorithm>

#include "kernels/activation.h"
#include "kernels/expert.h"

namespace moeccl {
namespace {

// Rows that go through both products together: enough for BLAS to run at full speed, few enough
// that their hidden values are small beside the tokens.
constexpr std::int64_t kBlockRows = 256;

blasint blasSize(std::int64_t size) { return static_cast<blasint>(size); }

// c [rows][columns] = a [rows][inner] b [inner][columns].
void multiply(std::int64_t rows, std::int64_t columns, std::int64_t inner, const float* a,
              const float* b, float* c) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, blasSize(rows), blasSize(columns),
              blasSize(inner), 1.0f, a, blasSize(inner), b, blasSize(columns), 0.0f, c,
              blasSize(columns));
}

// c [rows][columns] = a [rows][inner] b^T, of b [columns][inner].
void multiplyByTransposed(std::int64_t rows, std::int64_t columns, std::int64_t inner,
                          const float* a, const float* b, float* c) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, blasSize(rows), blasSize(columns),
              blasSize(inner), 1.0f, a, blasSize(inner), b, blasSize(inner), 0.0f, c,
              blasSize(columns));
}

// c [rows][columns] += a^T b, of a [inner][rows] and b [inner][columns]. c may be null: not wanted.
void addTransposedProduct(std::int64_t rows, std::int64_t columns, std::int64_t inner,
                          const float* a, const float* b, float* c) {
  if (c == nullptr) return;
  cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, blasSize(rows), blasSize(columns),
              blasSize(inner), 1.0f, a, blasSize(rows), b, blasSize(columns), 1.0f, c,
              blasSize(columns));
}

// sums [columns] += the rows of values [rows][columns]. sums may be null: not wanted.
void addRows(std::int64_t rows, std::int64_t columns, const float* values, float* sums) {
  for (std::int64_t row = 0; row < rows && sums != nullptr; ++row, values += columns)
    for (std::int64_t i = 0; i < columns; ++i) sums[i] += values[i];
}

template <typename Function>
void forEach(const float* bias, std::int64_t rows, std::int64_t width, float* values,
             Function function) {
  for (std::int64_t row = 0; row < rows; ++row, values += width)
    for (std::int64_t i = 0; i < width; ++i)
      values[i] = function(bias == nullptr ? values[i] : values[i] + bias[i]);
}

// gradients *= slope(values + bias).
template <typename Function>
void multiplyBySlope(const float* bias, std::int64_t rows, std::int64_t columns,
                     const float* values, float* gradients, Function slope) {
  for (std::int64_t row = 0; row < rows; ++row, values += columns, gradients += columns)
    for (std::int64_t i = 0; i < columns; ++i)
      gradients[i] *= slope(bias == nullptr ? values[i] : values[i] + bias[i]);
}

}  // namespace

void biasActivation(Activation activation, const float* bias, std::int64_t rows, std::int64_t width,
                    float* values) {
  if (activation == Activation::gelu)
    forEach(bias, rows, width, values, Gelu::of);
  else
    forEach(bias, rows, width, values, Relu::of);
}

std::int64_t expertWorkspace(std::int64_t hidden) { return kBlockRows * hidden; }

void expertForward(Activation activation, const ExpertWeights& weights, std::int64_t embedding,
                   std::int64_t hidden, const float* input, std::int64_t rows,
                   std::span<float> workspace, float* output) {
  for (std::int64_t begin = 0; begin < rows; begin += kBlockRows) {
    const std::int64_t count = std::min(kBlockRows, rows - begin);
    float* const result = output + begin * embedding;
    multiply(count, hidden, embedding, input + begin * embedding, weights.w1, workspace.data());
    biasActivation(activation, weights.b1, count, hidden, workspace.data());
    multiply(count, embedding, hidden, workspace.data(), weights.w2, result);
    if (weights.b2 != nullptr)
      forEach(weights.b2, count, embedding, result, [](float x) { return x; });
  }
}

std::int64_t expertBackwardWorkspace(std::int64_t hidden) { return 2 * kBlockRows * hidden; }

void expertBackward(Activation activation, const ExpertWeights& weights, std::int64_t embedding,
                    std::int64_t hidden, const float* input, const float* outputGradient,
                    std::int64_t rows, std::span<float> workspace, const ExpertGradients& gradients,
                    float* inputGradient) {
  float* const inner = workspace.data();
  float* const innerGradient = inner + kBlockRows * hidden;
  for (std::int64_t begin = 0; begin < rows; begin += kBlockRows) {
    const std::int64_t count = std::min(kBlockRows, rows - begin);
    const float* const in = input + begin * embedding;
    const float* const out = outputGradient + begin * embedding;
    multiply(count, hidden, embedding, in, weights.w1, inner);
    multiplyByTransposed(count, hidden, embedding, out, weights.w2, innerGradient);
    if (activation == Activation::gelu)
      multiplyBySlope(weights.b1, count, hidden, inner, innerGradient, Gelu::slope);
    else
      multiplyBySlope(weights.b1, count, hidden, inner, innerGradient, Relu::slope);
    biasActivation(activation, weights.b1, count, hidden, inner);
    addTransposedProduct(hidden, embedding, count, inner, out, gradients.w2);
    addRows(count, embedding, out, gradients.b2);
    addTransposedProduct(embedding, hidden, count, in, innerGradient, gradients.w1);
    addRows(count, hidden, innerGradient, gradients.b1);
    multiplyByTransposed(count, embedding, hidden, innerGradient, weights.w1,
                         inputGradient + begin * embedding);
  }
}

}  // namespace moeccl
