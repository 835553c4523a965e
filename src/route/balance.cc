// Adds up the gates' sums of a batch behind the work on its stream. Loss, imbalance and dropped
// choices are read from the total later.
#include "src/route/balance.h"

#include <algorithm>
#include <numeric>

namespace moeccl {

namespace {

std::size_t bytesOf(std::initializer_list<std::int64_t> sizes) {
  return static_cast<std::size_t>(elementCount(sizes)) * sizeof(double);
}

}  // namespace

BatchSums::BatchSums(Compute& compute)
    : rowSize_(gates::sumsSize(compute.shape().gate)),
      rowCount_(compute.shape().grid.nMp),
      rows_(compute.allocate(bytesOf({rowCount_, rowSize_}))) {}

BatchStats::BatchStats(Compute& compute)
    : compute_(compute),
      size_(gates::sumsSize(compute.shape().gate)),
      total_(compute.allocate(bytesOf({size_}))),
      gradient_(compute.allocate(bytesOf({size_}))),
      read_(compute.allocateForHost(bytesOf({size_}))),
      readable_(compute.mark()),
      assigned_(static_cast<std::size_t>(compute.shape().experts)),
      kept_(assigned_.size()) {}

void BatchStats::summarise(const BatchSums& sums, moecclStream_t stream) {
  auto* const total = static_cast<double*>(total_.get());
  compute_.clear(total, bytesOf({size_}), stream);
  compute_.addSums(total, size_, sums.rows(), sums.rowCount(), sums.rowSize(), stream);
  compute_.toHostLater(read_.get(), total, bytesOf({size_}), stream);
  readable_->set(stream);
}

const double* BatchStats::lossBackward(double scale, moecclStream_t stream) {
  auto* const gradient = static_cast<double*>(gradient_.get());
  compute_.lossBackward(static_cast<const double*>(total_.get()), scale, gradient, stream);
  return gradient;
}

void BatchStats::read() {
  readable_->await();
  const auto* const total = static_cast<const double*>(read_.get());
  for (std::size_t expert = 0; expert < assigned_.size(); ++expert) {
    assigned_[expert] = static_cast<std::int64_t>(total[expert]);
    kept_[expert] = static_cast<std::int64_t>(total[assigned_.size() + expert]);
  }
  auxiliaryLoss_ = compute_.auxiliaryLoss(total);
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

ChoiceCounts::ChoiceCounts(Compute& compute)
    : compute_(compute),
      counts_(compute.allocate(bytesOf({compute.shape().experts}))),
      spare_(compute.allocate(bytesOf({compute.shape().experts}))) {
  clear(nullptr);
}

void ChoiceCounts::add(const BatchSums& sums, moecclStream_t stream) {
  compute_.addSums(static_cast<double*>(counts_.get()), compute_.shape().experts, sums.rows(),
                   sums.rowCount(), sums.rowSize(), stream);
}

void ChoiceCounts::clear(moecclStream_t stream) {
  compute_.clear(counts_.get(), bytesOf({compute_.shape().experts}), stream);
}

}  // namespace moeccl
