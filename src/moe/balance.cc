#include "src/moe/balance.h"

#include <algorithm>
#include <numeric>

namespace moeccl {

namespace {

std::size_t numberOfSums(const LayerShape& shape) {
  return static_cast<std::size_t>(elementCount({shape.grid.nMp, gates::sumsSize(shape.gate)}));
}

}  // namespace

BatchSums::BatchSums(Compute& compute)
    : rowSize_(gates::sumsSize(compute.shape().gate)),
      rows_(compute.allocate(numberOfSums(compute.shape()) * sizeof(double))) {}

BatchStats::BatchStats(Compute& compute)
    : compute_(compute),
      gate_(compute.shape().gate),
      assigned_(static_cast<std::size_t>(compute.shape().experts)),
      kept_(assigned_.size()),
      rows_(numberOfSums(compute.shape())),
      total_(static_cast<std::size_t>(gates::sumsSize(compute.shape().gate))),
      gradient_(total_.size()),
      handedGradient_(compute.allocate(gradient_.size() * sizeof(double))) {}

void BatchStats::summarise(const BatchSums& sums, moecclStream_t stream) {
  compute_.toHost(rows_.data(), sums.rows(), rows_.size() * sizeof(double), stream);
  std::ranges::fill(total_, 0.0);
  for (std::size_t i = 0; i < rows_.size(); ++i) total_[i % total_.size()] += rows_[i];
  for (std::size_t expert = 0; expert < assigned_.size(); ++expert) {
    assigned_[expert] = static_cast<std::int64_t>(total_[expert]);
    kept_[expert] = static_cast<std::int64_t>(total_[assigned_.size() + expert]);
  }
  auxiliaryLoss_ = gate_.loss(total_.data(), 0, gradient_.data());
}

const double* BatchStats::lossBackward(double scale, moecclStream_t stream) {
  gate_.loss(total_.data(), scale, gradient_.data());
  compute_.fromHost(handedGradient_.get(), gradient_.data(), gradient_.size() * sizeof(double),
                    stream);
  return static_cast<const double*>(handedGradient_.get());
}

double BatchStats::imbalance() const {
  const auto total = std::reduce(assigned_.begin(), assigned_.end());
  if (total == 0) return 0;
  return static_cast<double>(std::ranges::max(assigned_)) * static_cast<double>(assigned_.size()) /
         static_cast<double>(total);
}

std::int64_t BatchStats::droppedChoices() const {
  return std::reduce(assigned_.begin(), assigned_.end()) - std::reduce(kept_.begin(), kept_.end());
}

}  // namespace moeccl
