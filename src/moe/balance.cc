#include "src/moe/balance.h"

#include <algorithm>
#include <numeric>

namespace moeccl {

BatchSums::BatchSums(const LayerShape& shape)
    : rowSize_(gates::sumsSize(shape.gate)),
      values_(static_cast<std::size_t>(elementCount({shape.grid.nMp, rowSize_}))) {}

BatchStats::BatchStats(const LayerShape& shape)
    : parts_(shape.grid.nMp),
      gate_(shape.gate),
      assigned_(static_cast<std::size_t>(shape.experts)),
      kept_(assigned_.size()),
      total_(static_cast<std::size_t>(gates::sumsSize(shape.gate))),
      gradient_(total_.size()) {}

void BatchStats::summarise(const BatchSums& sums) {
  std::ranges::fill(total_, 0.0);
  for (int part = 0; part < parts_; ++part)
    for (std::size_t i = 0; i < total_.size(); ++i) total_[i] += sums.row(part)[i];
  for (std::size_t expert = 0; expert < assigned_.size(); ++expert) {
    assigned_[expert] = static_cast<std::int64_t>(total_[expert]);
    kept_[expert] = static_cast<std::int64_t>(total_[assigned_.size() + expert]);
  }
  auxiliaryLoss_ = gate_.loss(total_.data(), 0, gradient_.data());
}

const double* BatchStats::lossBackward(double scale) {
  gate_.loss(total_.data(), scale, gradient_.data());
  return gradient_.data();
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
