// Computes an expert on the host in blocks of 256 rows, by BLAS. Narrow elements are widened block
// by block, and gradients of weights are rounded once at the end.
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

template <typename Real>
void wideForward(Activation activation, const ExpertWeights<Real>& weights, std::int64_t embedding,
                 std::int64_t hidden, const Real* input, std::int64_t rows,
                 std::span<Real> workspace, Real* output) {
  const std::int64_t width = innerWidth(activation, hidden);
  for (std::int64_t begin = 0; begin < rows; begin += kBlockRows) {
    const std::int64_t count = std::min(kBlockRows, rows - begin);
    Real* const result = output + begin * embedding;
    multiply(count, width, embedding, input + begin * embedding, weights.w1, workspace.data());
    activate(activation, weights.b1, count, hidden, workspace.data());
    multiply(count, embedding, hidden, workspace.data(), weights.w2, result);
    addToRows(count, embedding, weights.b2, result);
  }
}

template <typename Real>
void wideBackward(Activation activation, const ExpertWeights<Real>& weights, std::int64_t embedding,
                  std::int64_t hidden, const Real* input, const Real* outputGradient,
                  std::int64_t rows, std::span<Real> workspace,
                  const ExpertGradients<Real>& gradients, Real* inputGradient) {
  const std::int64_t width = innerWidth(activation, hidden);
  Real* const inner = workspace.data();
  Real* const innerGradient = inner + kBlockRows * width;
  for (std::int64_t begin = 0; begin < rows; begin += kBlockRows) {
    const std::int64_t count = std::min(kBlockRows, rows - begin);
    const Real* const in = input + begin * embedding;
    const Real* const out = outputGradient + begin * embedding;
    multiply(count, width, embedding, in, weights.w1, inner);
    multiplyByTransposed(count, hidden, embedding, out, weights.w2, innerGradient);
    activateBackward(activation, weights.b1, count, hidden, inner, innerGradient);
    addTransposedProduct(hidden, embedding, count, inner, out, gradients.w2);
    addRows(count, embedding, out, gradients.b2);
    addTransposedProduct(embedding, width, count, in, innerGradient, gradients.w1);
    addRows(count, width, innerGradient, gradients.b1);
    multiplyByTransposed(count, embedding, width, innerGradient, weights.w1,
                         inputGradient + begin * embedding);
  }
}

// An expert of narrow elements in the workspace: its weights in float32, and their gradients.
template <typename Real>
class NarrowExpert {
 public:
  NarrowExpert(Activation activation, const ExpertWeights<Real>& weights, std::int64_t embedding,
               std::int64_t hidden, std::span<float> workspace)
      : activation_(activation),
        embedding_(embedding),
        hidden_(hidden),
        width_(innerWidth(activation, hidden)),
        left_(workspace.data()) {
    const auto widened = [&](const Real* from, std::int64_t count) -> const float* {
      if (from == nullptr) return nullptr;
      float* const to = take(count);
      widen(from, count, to);
      return to;
    };
    weights_ = {widened(weights.w1, embedding * width_), widened(weights.b1, width_),
                widened(weights.w2, hidden * embedding), widened(weights.b2, embedding)};
    in_ = take(kBlockRows * embedding);
    out_ = take(kBlockRows * embedding);
    inner_ = {take(2 * kBlockRows * width_), static_cast<std::size_t>(2 * kBlockRows * width_)};
  }

  void forward(const Real* input, std::int64_t rows, Real* output) {
    eachBlock(rows, [&](std::int64_t begin, std::int64_t count) {
      widen(input + begin, count * embedding_, in_);
      wideForward(activation_, weights_, embedding_, hidden_, in_, count, inner_, in_);
      narrow(in_, count * embedding_, output + begin);
    });
  }

  void backward(const Real* input, const Real* outputGradient, std::int64_t rows,
                const ExpertGradients<Real>& gradients, Real* inputGradient) {
    const auto zeros = [&](Real* wanted, std::int64_t count) -> float* {
      if (wanted == nullptr) return nullptr;
      float* const sums = take(count);
      std::fill_n(sums, count, 0.0f);
      return sums;
    };
    const std::int64_t first = embedding_ * width_, second = hidden_ * embedding_;
    const ExpertGradients<float> sums = {zeros(gradients.w1, first), zeros(gradients.b1, width_),
                                         zeros(gradients.w2, second),
                                         zeros(gradients.b2, embedding_)};
    eachBlock(rows, [&](std::int64_t begin, std::int64_t count) {
      widen(input + begin, count * embedding_, in_);
      widen(outputGradient + begin, count * embedding_, out_);
      wideBackward(activation_, weights_, embedding_, hidden_, in_, out_, count, inner_, sums,
                   out_);
      narrow(out_, count * embedding_, inputGradient + begin);
    });
    const auto add = [](const float* from, std::int64_t count, Real* to) {
      if (to != nullptr) addNarrowed(from, count, to);
    };
    add(sums.w1, first, gradients.w1);
    add(sums.b1, width_, gradients.b1);
    add(sums.w2, second, gradients.w2);
    add(sums.b2, embedding_, gradients.b2);
  }

 private:
  float* take(std::int64_t count) {
    left_ += count;
    return left_ - count;
  }
  template <typename Function>
  void eachBlock(std::int64_t rows, Function function) const {
    for (std::int64_t begin = 0; begin < rows; begin += kBlockRows)
      function(begin * embedding_, std::min(kBlockRows, rows - begin));
  }

  const Activation activation_;
  const std::int64_t embedding_, hidden_, width_;
  float* left_;
  ExpertWeights<float> weights_{};
  float *in_, *out_;
  std::span<float> inner_;
};

}  // namespace

std::int64_t expertWorkspace(std::int64_t inner) { return kBlockRows * inner; }

std::int64_t narrowExpertWorkspace(std::int64_t embedding, std::int64_t hidden,
                                   std::int64_t inner) {
  const std::int64_t weights = embedding * (inner + hidden) + inner + embedding;
  return 2 * (weights + kBlockRows * (embedding + inner));
}

template <typename Real>
void expertForward(Activation activation, const ExpertWeights<Real>& weights,
                   std::int64_t embedding, std::int64_t hidden, const Real* input,
                   std::int64_t rows, std::span<Wide<Real>> workspace, Real* output) {
  if (rows == 0) return;
  if constexpr (kIsNarrow<Real>)
    NarrowExpert<Real>(activation, weights, embedding, hidden, workspace)
        .forward(input, rows, output);
  else
    wideForward(activation, weights, embedding, hidden, input, rows, workspace, output);
}

std::int64_t expertBackwardWorkspace(std::int64_t inner) { return 2 * kBlockRows * inner; }

template <typename Real>
void expertBackward(Activation activation, const ExpertWeights<Real>& weights,
                    std::int64_t embedding, std::int64_t hidden, const Real* input,
                    const Real* outputGradient, std::int64_t rows, std::span<Wide<Real>> workspace,
                    const ExpertGradients<Real>& gradients, Real* inputGradient) {
  if (rows == 0) return;
  if constexpr (kIsNarrow<Real>)
    NarrowExpert<Real>(activation, weights, embedding, hidden, workspace)
        .backward(input, outputGradient, rows, gradients, inputGradient);
  else
    wideBackward(activation, weights, embedding, hidden, input, outputGradient, rows, workspace,
                 gradients, inputGradient);
}

#define MOECCL_EXPERT(Real)                                                                        \
  template void expertForward(Activation, const ExpertWeights<Real>&, std::int64_t, std::int64_t,  \
                              const Real*, std::int64_t, std::span<Wide<Real>>, Real*);            \
  template void expertBackward(Activation, const ExpertWeights<Real>&, std::int64_t, std::int64_t, \
                               const Real*, const Real*, std::int64_t, std::span<Wide<Real>>,      \
                               const ExpertGradients<Real>&, Real*);
MOECCL_EXPERT(float)
MOECCL_EXPERT(double)
MOECCL_EXPERT(NarrowFloat16)
MOECCL_EXPERT(NarrowBfloat16)
#undef MOECCL_EXPERT

}  // namespace moeccl
