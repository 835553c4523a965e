// What a transformer computes beside attention and experts, on one rank: row-major float matrices.
#pragma once

#include <cstdint>
#include <vector>

#include "parameters.h"

namespace train {

// A matrix, or a block of one whose rows are `stride` apart.
struct Matrix {
  const float* data;
  std::int64_t stride;
  bool transposed = false;
};

// result [rows][columns] = scale x a [rows][inner] x b [inner][columns], or added to it.
enum class Into { kSet, kAdd };
void multiply(float* result, std::int64_t resultStride, const Matrix& a, const Matrix& b,
              std::int64_t rows, std::int64_t columns, std::int64_t inner, Into into,
              float scale = 1);

void add(float* sum, const float* values, std::int64_t count);

// Each row, minus its mean, divided by its deviation, times gain, plus bias.
class LayerNorm {
 public:
  LayerNorm(Parameters& parameters, const std::string& name, std::int64_t rows,
            std::int64_t columns);
  void initialise(Parameters& parameters) const;
  void forward(const float* input, float* output);
  // Adds to inputGradient, which holds what bypassed the norm.
  void backward(const float* outputGradient, float* inputGradient);

 private:
  std::int64_t rows_, columns_;
  const Parameter &gain_, &bias_;
  std::vector<float> normal_;   // [rows][columns]
  std::vector<float> inverse_;  // [rows], of the deviation
};

// The sum over rows of -log softmax(logits)[target]; logits become its gradient, times `scale`.
double crossEntropy(float* logits, const std::int32_t* targets, std::int64_t rows,
                    std::int64_t columns, double scale);

}  // namespace train
