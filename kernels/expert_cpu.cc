#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/expert.h"

namespace moeccl {
namespace {

// Rows that go through both products together: enough for BLAS to run at full speed, few enough
// that their hidden values are small beside the tokens.
constexpr std::int64_t kBlockRows = 256;

// c [rows][columns] = a [rows][inner] b [inner][columns].
void multiply(std::int64_t rows, std::int64_t columns, std::int64_t inner, const float* a,
              const float* b, float* c) {
  const auto width = [](std::int64_t size) { return static_cast<blasint>(size); };
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, width(rows), width(columns), width(inner),
              1.0f, a, width(inner), b, width(columns), 0.0f, c, width(columns));
}

float gelu(float x) {
  constexpr float kHalfSqrt = static_cast<float>(1 / std::numbers::sqrt2);
  return 0.5f * x * (1.0f + std::erf(x * kHalfSqrt));
}

template <typename Function>
void forEach(const float* bias, std::int64_t rows, std::int64_t width, float* values,
             Function function) {
  for (std::int64_t row = 0; row < rows; ++row, values += width)
    for (std::int64_t i = 0; i < width; ++i)
      values[i] = function(bias == nullptr ? values[i] : values[i] + bias[i]);
}

}  // namespace

void biasActivation(Activation activation, const float* bias, std::int64_t rows, std::int64_t width,
                    float* values) {
  if (activation == Activation::gelu)
    forEach(bias, rows, width, values, gelu);
  else  // keeps NaN, unlike std::max
    forEach(bias, rows, width, values, [](float x) { return x < 0 ? 0.0f : x; });
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

}  // namespace moeccl
