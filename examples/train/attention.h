// Causal attention of several heads, which the ranks of an MP group share: each has its heads'
// columns of the first matrices and rows of the last, and the sum of what they contribute is the
// output.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parameters.h"

namespace train {

class Attention {
 public:
  // Of `samples` x `context` tokens of `embedding` elements. nMp must divide `heads`, and heads
  // `embedding`.
  Attention(const Team& team, Parameters& parameters, const std::string& name, std::int64_t samples,
            std::int64_t context, std::int64_t embedding, std::int64_t heads);
  // `outputScale`: of the last matrix, by the number of layers that add to one stream.
  void initialise(Parameters& parameters, std::uint64_t seed, double outputScale) const;
  // [samples][context][embedding] each, the same on all ranks of the MP group. Collective over it.
  void forward(const Real* input, Real* output);
  // Sets inputGradient. Collective over the MP group.
  void backward(const Real* outputGradient, Real* inputGradient);

 private:
  // One head of one sample.
  void forwardHead(std::int64_t sample, std::int64_t head);
  void backwardHead(std::int64_t sample, std::int64_t head);
  std::int64_t headAt(std::int64_t sample, std::int64_t head) const;
  Real* scoresOf(std::int64_t sample, std::int64_t head);

  const Team& team_;
  std::int64_t samples_, context_, embedding_, heads_, headSize_, width_;  // heads_: the caller's
  const Parameter &query_, &key_, &value_, &output_;
  std::vector<Real> input_;                                    // [tokens][embedding]
  std::vector<Real> queries_, keys_, values_, mixed_;          // [tokens][width]
  std::vector<Real> scores_;                                   // [samples][heads][context][context]
  std::vector<Real> ofQueries_, ofKeys_, ofValues_, ofMixed_;  // gradients
  std::vector<Real> ofScores_;                                 // of one head
};

}  // namespace train
