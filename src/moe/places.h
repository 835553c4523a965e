// Room for a matrix of places, each place one token wide, and for what comes of it.
#pragma once

#include <cstdint>

#include "src/moe/compute.h"

namespace moeccl {

// Memory for so many rows, each one token wide, of a dropless layer. Throws Error (SystemError), which says
// how many, where there is none.
Memory memoryForRows(Compute& compute, std::int64_t rows);

class Places {
 public:
  // `size`: elements of the largest matrix. `compute` must outlive this.
  Places(Compute& compute, std::int64_t size)
      : compute_(compute),
        size_(size),
        rows_(compute.elements(size)),
        spare_(compute.elements(size)) {}
  // For dropless layers: room for any such matrix as comes along, of which reserve is told first.
  explicit Places(Compute& compute) : compute_(compute) {}

  // For backward: room for what experts are given, and for the first `results` elements of what comes
  // back of them.
  void keepForBackward(std::int64_t results) {
    keeps_ = true;
    inputs_ = compute_.elements(size_);
    results_ = compute_.elements(results);
    resultsSize_ = results;
  }
  // Room for matrices of so many rows, of which for backward `results` come back; whatever there was is lost. It
  // grows, but never shrinks. Throws as memoryForRows.
  void reserve(std::int64_t rows, std::int64_t results);

  // The matrix at hand.
  void* rows() { return rows_.get(); }
  // Where to write what comes of it, before swap makes that the matrix at hand.
  void* spare() { return spare_.get(); }
  void swap() { rows_.swap(spare_); }

  // Where experts write their results, before swapResults makes those the matrix at hand and, for
  // backward, keeps what was.
  void* expertResults() { return keeps_ ? inputs_.get() : rows_.get(); }
  void swapResults() {
    if (keeps_) rows_.swap(inputs_);
  }
  const void* keptInputs() const { return inputs_.get(); }

  // Copies what came back of the experts, the matrix at hand, for backward.
  void keepResults(moecclStream_t stream) {
    if (keeps_) compute_.copy(results_.get(), rows(), resultsSize_, stream);
  }
  const void* keptResults() const { return results_.get(); }

 private:
  Compute& compute_;
  bool keeps_ = false;
  std::int64_t size_ = 0, resultsSize_ = 0, resultsRoom_ = 0;
  Memory rows_, spare_, inputs_, results_;
};

}  // namespace moeccl
