// How a batch's choices load the experts: what gates sum up, and what is reported of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/gates/gate.h"
#include "src/moe/layer_shape.h"

namespace moeccl {

// Per part of a batch one row of sums, as gates make them. Rows of different parts come from
// different ranks under S1, and are added in the order of the parts under every schedule, so that the
// loss is the same to the last bit.
class BatchSums {
 public:
  explicit BatchSums(const LayerShape& shape);

  std::int64_t rowSize() const { return rowSize_; }
  double* rows() { return values_.data(); }
  double* row(int part) { return values_.data() + part * rowSize_; }
  void clear(int part) { std::fill_n(row(part), rowSize_, 0.0); }
  const double* row(int part) const { return values_.data() + part * rowSize_; }

 private:
  std::int64_t rowSize_;
  std::vector<double> values_;
};

// As moecclMoeStats_t reports them.
class BatchStats {
 public:
  explicit BatchStats(const LayerShape& shape);

  void summarise(const BatchSums& sums);
  // The gradient of scale * the auxiliary loss by the sums, [rowSize]; valid until the next call.
  const double* lossBackward(double scale);

  double auxiliaryLoss() const { return auxiliaryLoss_; }
  double imbalance() const;
  std::int64_t droppedChoices() const;
  const std::vector<std::int64_t>& assigned() const { return assigned_; }  // [experts]
  const std::vector<std::int64_t>& kept() const { return kept_; }

 private:
  const int parts_;
  const gates::Gate<float> gate_;  // knows the loss
  double auxiliaryLoss_ = 0;
  std::vector<std::int64_t> assigned_, kept_;
  std::vector<double> total_, gradient_;  // [rowSize]
};

}  // namespace moeccl
