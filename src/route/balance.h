// How a batch's choices load the experts: what gates sum up, and what is reported of it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/gates/gate.h"
#include "src/route/compute.h"

namespace moeccl {

// Per part of a batch one row of sums, as gates make them, in the memory that a layer computes in.
// Rows of different parts come from different ranks under S1, and are added in the order of the
// parts under every schedule, so that the loss is the same to the last bit.
class BatchSums {
 public:
  explicit BatchSums(Compute& compute);

  std::int64_t rowSize() const { return rowSize_; }
  std::int64_t rowCount() const { return rowCount_; }
  double* rows() const { return static_cast<double*>(rows_.get()); }
  double* row(int part) const { return rows() + part * rowSize_; }

 private:
  std::int64_t rowSize_, rowCount_;
  Memory rows_;
};

// As moecclMoeStats_t reports them.
class BatchStats {
 public:
  explicit BatchStats(Compute& compute);

  // Summarises what the sums are once the stream has come so far.
  void summarise(const BatchSums& sums, moecclStream_t stream);
  // The gradient of scale * the auxiliary loss by the sums, [rowSize], in the memory of sums; valid
  // until the next call.
  const double* lossBackward(double scale, moecclStream_t stream);

  // Waits for what was summarised last. Only then is the rest of any use.
  void read();
  double auxiliaryLoss() const { return auxiliaryLoss_; }
  double imbalance() const;
  std::int64_t droppedChoices() const;
  const std::vector<std::int64_t>& assigned() const { return assigned_; }  // [experts]
  const std::vector<std::int64_t>& kept() const { return kept_; }

 private:
  Compute& compute_;
  const std::int64_t size_;  // of a row of sums
  Memory total_, gradient_;  // [size], in the memory of sums
  Memory read_;              // total_, on the host
  std::unique_ptr<Mark> readable_;
  double auxiliaryLoss_ = 0;
  std::vector<std::int64_t> assigned_, kept_;
};

// How often each expert was chosen in several batches.
class ChoiceCounts {
 public:
  explicit ChoiceCounts(Compute& compute);

  void add(const BatchSums& sums, moecclStream_t stream);
  void clear(moecclStream_t stream);
  // [experts], in the memory of sums; the second: as much room.
  const double* counts() const { return static_cast<const double*>(counts_.get()); }
  double* spare() const { return static_cast<double*>(spare_.get()); }

 private:
  Compute& compute_;
  Memory counts_, spare_;
};

}  // namespace moeccl
