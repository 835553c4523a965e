// Room for a matrix of places, each place one token wide, and for what comes of it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace moeccl {

class Places {
 public:
  // `size`: floats of the largest matrix.
  explicit Places(std::int64_t size) : size_(size), rows_(room()), spare_(room()) {}

  // For backward: room for what experts are given, and for the first `results` floats of what comes
  // back of them.
  void keepForBackward(std::int64_t results) {
    inputs_ = room();
    results_.resize(static_cast<std::size_t>(results));
  }

  // The matrix at hand.
  float* rows() { return rows_.get(); }
  // Where to write what comes of it, before swap makes that the matrix at hand.
  float* spare() { return spare_.get(); }
  void swap() { rows_.swap(spare_); }

  // Where experts write their results, before swapResults makes those the matrix at hand and, for
  // backward, keeps what was.
  float* expertResults() { return inputs_ ? inputs_.get() : rows_.get(); }
  void swapResults() {
    if (inputs_) rows_.swap(inputs_);
  }
  const float* keptInputs() const { return inputs_.get(); }

  // Copies what came back of the experts, the matrix at hand, for backward.
  void keepResults() { std::copy_n(rows(), results_.size(), results_.data()); }
  const float* keptResults() const { return results_.data(); }

 private:
  std::unique_ptr<float[]> room() const {
    return std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(size_));
  }

  std::int64_t size_;
  std::unique_ptr<float[]> rows_, spare_, inputs_;
  std::vector<float> results_;
};

}  // namespace moeccl
