// Matrix products by BLAS, layer norms, softmax and losses.
#include "dense.h"

#include <cblas.h>

#include <algorithm>
#include <cmath>

namespace train {
namespace {

// Added to the variance, as usual.
constexpr double kEpsilon = 1e-5;

blasint blasSize(std::int64_t size) { return static_cast<blasint>(size); }

template <typename Number>
constexpr auto gemmOf() {
  if constexpr (sizeof(Number) == sizeof(double))
    return cblas_dgemm;
  else
    return cblas_sgemm;
}

CBLAS_TRANSPOSE wayOf(const Matrix& matrix) {
  return matrix.transposed ? CblasTrans : CblasNoTrans;
}

}  // namespace

void multiply(Real* result, std::int64_t resultStride, const Matrix& a, const Matrix& b,
              std::int64_t rows, std::int64_t columns, std::int64_t inner, Into into, Real scale) {
  gemmOf<Real>()(CblasRowMajor, wayOf(a), wayOf(b), blasSize(rows), blasSize(columns),
                 blasSize(inner), scale, a.data, blasSize(a.stride), b.data, blasSize(b.stride),
                 into == Into::kAdd ? Real{1} : Real{0}, result, blasSize(resultStride));
}

void add(Real* sum, const Real* values, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) sum[i] += values[i];
}

LayerNorm::LayerNorm(Parameters& parameters, const std::string& name, std::int64_t rows,
                     std::int64_t columns)
    : rows_(rows),
      columns_(columns),
      gain_(parameters.add(name + ".gain", Holders::kAll, wholeOf(1, 1, columns))),
      bias_(parameters.add(name + ".bias", Holders::kAll, wholeOf(1, 1, columns))),
      normal_(static_cast<std::size_t>(rows * columns)),
      inverse_(static_cast<std::size_t>(rows)) {}

void LayerNorm::initialise(Parameters& parameters) const { parameters.fill(gain_, 1); }

void LayerNorm::forward(const Real* input, Real* output) {
  for (std::int64_t row = 0; row < rows_; ++row) {
    const Real* const in = input + row * columns_;
    double sum = 0, squares = 0;
    for (std::int64_t i = 0; i < columns_; ++i) sum += in[i];
    const double mean = sum / static_cast<double>(columns_);
    for (std::int64_t i = 0; i < columns_; ++i) squares += (in[i] - mean) * (in[i] - mean);
    const double inverse = 1 / std::sqrt(squares / static_cast<double>(columns_) + kEpsilon);
    inverse_[static_cast<std::size_t>(row)] = static_cast<Real>(inverse);
    Real* const normal = normal_.data() + row * columns_;
    for (std::int64_t i = 0; i < columns_; ++i) {
      normal[i] = static_cast<Real>((in[i] - mean) * inverse);
      output[row * columns_ + i] = normal[i] * gain_.value[i] + bias_.value[i];
    }
  }
}

void LayerNorm::backward(const Real* outputGradient, Real* inputGradient) {
  for (std::int64_t row = 0; row < rows_; ++row) {
    const Real* const out = outputGradient + row * columns_;
    const Real* const normal = normal_.data() + row * columns_;
    double sum = 0, along = 0;  // of the gradient by the normal row, and of that along the row
    for (std::int64_t i = 0; i < columns_; ++i) {
      gain_.gradient[i] += out[i] * normal[i];
      bias_.gradient[i] += out[i];
      const double each = static_cast<double>(out[i]) * gain_.value[i];
      sum += each;
      along += each * normal[i];
    }
    sum /= static_cast<double>(columns_);
    along /= static_cast<double>(columns_);
    const Real inverse = inverse_[static_cast<std::size_t>(row)];
    for (std::int64_t i = 0; i < columns_; ++i)
      inputGradient[row * columns_ + i] +=
          inverse *
          static_cast<Real>(static_cast<double>(out[i]) * gain_.value[i] - sum - normal[i] * along);
  }
}

void softmax(Real* logits, std::int64_t rows, std::int64_t columns) {
  for (Real* row = logits; row < logits + rows * columns; row += columns) {
    const Real most = *std::max_element(row, row + columns);
    double sum = 0;
    for (std::int64_t i = 0; i < columns; ++i) sum += row[i] = std::exp(row[i] - most);
    for (std::int64_t i = 0; i < columns; ++i) row[i] = static_cast<Real>(row[i] / sum);
  }
}

Losses learn(Real* logits, const Lesson& lesson, std::int64_t rows, std::int64_t columns,
             double scale) {
  Losses losses;
  for (std::int64_t row = 0; row < rows; ++row) {
    Real* const at = logits + row * columns;
    const Real* const teacher =
        lesson.teacher == nullptr ? nullptr : lesson.teacher + row * columns;
    const std::int32_t target = lesson.targets[row];
    const Real most = *std::max_element(at, at + columns);
    double sum = 0;
    for (std::int64_t i = 0; i < columns; ++i) sum += std::exp(static_cast<double>(at[i]) - most);
    const double logSum = std::log(sum) + most;
    losses.crossEntropy += logSum - at[target];
    for (std::int64_t i = 0; i < columns; ++i) {
      const double logP = at[i] - logSum, p = std::exp(logP);
      double slope = p - (i == target ? 1 : 0);
      if (teacher != nullptr) {
        const double t = teacher[i];
        if (t > 0) losses.divergence += t * (std::log(t) - logP);
        slope += lesson.weight * (p - t);
      }
      at[i] = static_cast<Real>(scale * slope);
    }
  }
  return losses;
}

}  // namespace train
