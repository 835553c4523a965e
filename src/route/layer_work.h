// What a pass of the layer computes beside its experts: gate, ways of tokens to rows and back,
// residual branch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "src/route/balance.h"
#include "src/route/compute.h"
#include "src/route/groups.h"
#include "src/route/router.h"
#include "src/route/work.h"

namespace moeccl {

// Memory, elements and streams as in src/route/mover.h. What it is made with must outlive it.
class LayerWork : public schedules::Work {
 public:
  // keeps: what the gate's backward needs.
  LayerWork(const Groups& groups, Compute& compute, const schedules::Schedule& forward, bool keeps);

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
  void readCounts(const schedules::Table& table, std::span<std::int64_t> counts) override;
  schedules::Chosen chosen(const schedules::Table& routing) override;
  void setWeightGradients(const schedules::Table& routing, const float* from, void* to,
                          moecclStream_t stream) override;
  void permute(const schedules::Step& step) override;
  void combine(const schedules::Step& step) override;
  void residual(const schedules::Step& step) override;
  void gateBackward(const schedules::Step& step) override;
  void permuteBackward(const schedules::Step& step) override;
  void combineBackward(const schedules::Step& step) override;
  void residualBackward(const schedules::Step& step) override;
  std::span<const std::int64_t> keptBegins() override { return keptBegins_; }
  double* sums() override { return sums_.rows(); }
  void addGradients(schedules::Dim which, const void* gradients, moecclStream_t stream) override;

 protected:
  // Decides which experts the tokens of the step go to.
  virtual void route(const schedules::Step& step);
  // Of so many parts from `first` on.
  void clearSums(std::int64_t first, std::int64_t parts, moecclStream_t stream);
  Compute& compute() const { return compute_; }
  const Groups& groups() const { return groups_; }
  Router& router(std::size_t index) { return *routers_[index]; }
  std::size_t routers() const { return routers_.size(); }

 private:
  // What is random about the batch of a rank of the world; nothing is but in training.
  std::optional<gates::Draw> drawOf(int rank) const;
  // Of the table of routing of one chunk, or of the own batch.
  Router& routerOf(const schedules::Table& routing);
  // Those of a table's chunk, by ESP rank where it is of batches.
  std::span<std::unique_ptr<Router>> routersOf(const schedules::Table& table);
  std::span<const std::int64_t*> beginsOf(const schedules::Table& table);
  template <typename Each>
  std::span<Each> ofChunk(std::span<Each> all, const schedules::Table& table) const {
    const auto each = static_cast<std::size_t>(ofBatches_ ? groups_.esp.ranks : 1);
    return all.subspan(static_cast<std::size_t>(table.chunk) * each, each);
  }
  // Tokens of the step, of one batch.
  Router::Tokens tokensOf(const schedules::Step& step) const;
  // In a table of counts.
  int batchesOf(const schedules::Table& table) const;
  void setKept();
  // The rank's own choices in the list of a router, or those of the expert that the step is about.
  Router::Listed listed(const schedules::Step& step, Router& router) const;
  // Tokens of a table that has the own batch's, without padding.
  std::int64_t tokensOf(const schedules::Table& table) const;
  // Places per expert in a table of rows, over all batches.
  std::int64_t stride(const schedules::Table& rows) const;
  void permuteBatches(const schedules::Step& step);
  // Where the weights of the residual branch, or their gradients, lie behind each other.
  MlpGradients residualIn(void* all) const;

  Compute& compute_;
  const LayerShape shape_;
  const schedules::Sizes sizes_;
  const Groups& groups_;
  Routers routers_;                          // by chunk, and by ESP rank where there are batches
  bool ofBatches_;                           // of all ESP ranks
  std::vector<const std::int64_t*> begins_;  // by router, as its list says
  std::vector<Gathering> gatherings_;        // at hand
  BatchSums sums_;                           // of the own batch
  std::vector<std::int64_t> keptBegins_;
  LayerWeights weights_;
  LayerGradients gradients_;
  const double* sumGradients_ = nullptr;
  std::int64_t step_ = 0, firstBatch_ = 0;
};

}  // namespace moeccl
