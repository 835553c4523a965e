// What a transformer computes beside attention and experts, on one rank: row-major matrices.
#pragma once

#include <cstdint>
#include <vector>

#include "parameters.h"

namespace train {

// A matrix, or a block of one whose rows are `stride` apart.
struct Matrix {
  const Real* data;
  std::int64_t stride;
  bool transposed = false;
};

// result [rows][columns] = scale x a [rows][inner] x b [inner][columns], or added to it.
enum class Into { kSet, kAdd };
void multiply(Real* result, std::int64_t resultStride, const Matrix& a, const Matrix& b,
              std::int64_t rows, std::int64_t columns, std::int64_t inner, Into into,
              Real scale = 1);

void add(Real* sum, const Real* values, std::int64_t count);

// Each row, minus its mean, divided by its deviation, times gain, plus bias.
class LayerNorm {
 public:
  LayerNorm(Parameters& parameters, const std::string& name, std::int64_t rows,
            std::int64_t columns);
  void initialise(Parameters& parameters) const;
  void forward(const Real* input, Real* output);
  // Adds to inputGradient, which holds what bypassed the norm.
  void backward(const Real* outputGradient, Real* inputGradient);

 private:
  std::int64_t rows_, columns_;
  const Parameter &gain_, &bias_;
  std::vector<Real> normal_;   // [rows][columns]
  std::vector<Real> inverse_;  // [rows], of the deviation
};

// Each row becomes its softmax.
void softmax(Real* logits, std::int64_t rows, std::int64_t columns);

// What a row of probabilities should be: at least a target character, perhaps also a teacher's
// probabilities.
struct Lesson {
  const std::int32_t* targets;    // [rows]
  const Real* teacher = nullptr;  // [rows][columns], or nullptr
  double weight = 0;              // of the divergence from the teacher, by the cross entropy
};

// Sums over rows, in nats.
struct Losses {
  double crossEntropy = 0;  // -log p[target]
  double divergence = 0;    // Kullback and Leibler's: of t log(t / p), t being the teacher's
};

// The losses of softmax(logits); logits become the gradient of `scale` times (cross entropy +
// weight x divergence).
Losses learn(Real* logits, const Lesson& lesson, std::int64_t rows, std::int64_t columns,
             double scale);

}  // namespace train
