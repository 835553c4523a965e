// Room for a matrix of places, each place one token wide, and for what comes of it.
#pragma once

#include <cstdint>

#include "src/moe/compute.h"

namespace moeccl {

class Places {
 public:
  // `size`: elements of the largest matrix. `compute` must outlive this.
  Places(Compute& compute, std::int64_t size)
      : compute_(compute),
        size_(size),
        rows_(compute.elements(size)),
        spare_(compute.elements(size)) {}

  // For backward: room for what experts are given, and for the first `results` elements of what comes
  // back of them.
  void keepForBackward(std::int64_t results) {
    inputs_ = compute_.elements(size_);
    results_ = compute_.elements(results);
    resultsSize_ = results;
  }

  // The matrix at hand.
  void* rows() { return rows_.get(); }
  // Where to write what comes of it, before swap makes that the matrix at hand.
  void* spare() { return spare_.get(); }
  void swap() { rows_.swap(spare_); }

  // Where experts write their results, before swapResults makes those the matrix at hand and, for
  // backward, keeps what was.
  void* expertResults() { return inputs_ ? inputs_.get() : rows_.get(); }
  void swapResults() {
    if (inputs_) rows_.swap(inputs_);
  }
  const void* keptInputs() const { return inputs_.get(); }

  // Copies what came back of the experts, the matrix at hand, for backward.
  void keepResults(moecclStream_t stream) {
    if (results_) compute_.copy(results_.get(), rows(), resultsSize_, stream);
  }
  const void* keptResults() const { return results_.get(); }

 private:
  Compute& compute_;
  std::int64_t size_, resultsSize_ = 0;
  Memory rows_, spare_, inputs_, results_;
};

}  // namespace moeccl
