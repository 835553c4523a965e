// What a pass of the layer computes beside its experts: gate and residual branch, and the ways of
// tokens to rows and back.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "src/route/balance.h"
#include "src/route/compute.h"
#include "src/route/router.h"
#include "src/route/row_work.h"

namespace moeccl {

// Memory, elements and streams as in src/route/mover.h. What it is made with must outlive it.
class LayerWork final : public OwnWork, public RowWork {
 public:
  // `compute`: for a shape, which is that of the passes.
  LayerWork(const Groups& groups, Compute& compute);

  // For the passes from now on. step: of the training, for what is random, as is the number of the
  // first MP group's batch.
  void setWeights(const LayerWeights& weights) { weights_ = weights; }
  void setGradients(const LayerGradients& gradients) { gradients_ = gradients; }
  void setStep(std::int64_t step) { step_ = step; }
  void setFirstBatch(std::int64_t first) { firstBatch_ = first; }
  // By the gate's sums, as of BatchStats::lossBackward.
  void setSumGradients(const double* gradients) { sumGradients_ = gradients; }

  const LayerWeights& weights() const { return weights_; }
  const LayerGradients& gradients() const { return gradients_; }
  const BatchSums& batchSums() const { return sums_; }

  void gate(const schedules::Step& step) override;
  void residual(const schedules::Step& step) override;
  void gateBackward(const schedules::Step& step) override;
  void residualBackward(const schedules::Step& step) override;
  double* sums() override { return sums_.rows(); }
  void addGradients(schedules::Dim which, const void* gradients, moecclStream_t stream) override;

 private:
  // The random numbers of the batch of a rank of the world; there are none but in training.
  std::optional<gates::Draw> drawOf(int rank) const;
  // Decides which experts the tokens of the step go to.
  void route(const schedules::Step& step);
  // Clears the sums of so many parts from `first` on.
  void clearSums(std::int64_t first, std::int64_t parts, moecclStream_t stream);
  // As routersOf and routerOf.
  std::span<std::unique_ptr<Router>> gatesOf(const schedules::Table& table) {
    return ofChunk(std::span(routers_), table);
  }
  Router& gateOf(const schedules::Table& routing) { return *gatesOf(routing)[ownRouter()]; }
  // Tokens of the step, of one batch.
  Router::Tokens tokensOfStep(const schedules::Step& step) const;
  // Where w1, b1, w2 and b2 of the residual branch begin where they lie behind each other, and
  // where the last ends.
  std::array<std::int64_t, 5> residualBegins() const;

  Compute& compute_;
  Routers routers_;
  BatchSums sums_;  // of the own batch
  LayerWeights weights_;
  LayerGradients gradients_;
  const double* sumGradients_ = nullptr;
  std::int64_t step_ = 0, firstBatch_ = 0;
};

}  // namespace moeccl
