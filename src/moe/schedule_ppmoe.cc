// PPMoE: the MP group holds all experts, and its ranks have all tokens already; only results need an
// exchange (PPMoE 3.3). Every array is followed by [embedding]:
//
//   input            [tokens]
//     | gate, the same on all ranks of the MP group
//     | for each of the caller's experts, one after another:
//     |     its tokens, selected by index    [kept choices of it]
//     |       | expert: partial sums, of the caller's hidden units
//     |       | weighted, added to
//   partial          [tokens]
//     | AllReduce: adds experts and shards
//   output           [tokens]
//
// No place is left empty, so nothing is padded; capacity only drops choices. Each rank adds what the residual
// branch makes of its part of the tokens to `partial`.
//
// Bytes that leave a rank, with x = B L M s: 2 (1 - 1 / P) x.
//
// Backward:
//
//   outputGradient   [tokens]                             the same on all ranks
//     | for each of the caller's experts, one after another:
//     |     its tokens' gradients, weighted; with what it returned: the weights' partial gradients
//     |       | expert: its weights' gradients, and partial sums of its inputs'
//     |       | added to
//   partial          [tokens]                             and [tokens][k], the weights' gradients
//     | AllReduce of both
//     | the gate's part: the same on all ranks
//   inputGradient    [tokens]
//
// Bytes that leave a rank: 2 (1 - 1 / P) (1 + k / M) x.
#include <algorithm>
#include <optional>

#include "src/moe/residual.h"
#include "src/moe/router.h"
#include "src/moe/schedule.h"

namespace moeccl {
namespace {

class PpMoe final : public Schedule {
 public:
  PpMoe(const Groups& groups, Compute& compute)
      : Schedule(groups, compute),
        router_(compute.router(shape_.paddedTokens(), shape_.training)),
        rows_(compute.elements(batch())),
        partial_(compute.elements(elementCount(
            {shape_.tokens, shape_.embedding + (shape_.training ? shape_.choices : 0)}))) {
    compute.reserveRows(shape_.tokens);  // of one expert
    if (shape_.residual > 0) residual_.emplace(groups_, compute, *this, false);
    if (!shape_.training) return;
    rowGradients_ = compute.elements(batch());
    if (!shape_.dropless)
      reserveResults(std::min(elementCount({shape_.localExperts, shape_.capacity()}),
                              elementCount({shape_.tokens, shape_.choices})));
  }

  moecclResult_t forward(const LayerWeights& weights, std::int64_t step, const void* input,
                         void* output, BatchSums& sums, moecclStream_t stream) override {
    router_->routeBatch(weights.gate, drawOf(step, groups_.world.rank), input, sums, stream);
    begins_ = router_->list(stream);
    if (shape_.training)
      reserveResults(begins_[firstExpert() + shape_.localExperts] - begins_[firstExpert()]);
    compute_.zero(partial_.get(), batch(), stream);
    for (std::int64_t expert = 0; expert < shape_.localExperts; ++expert) {
      const Router::Listed listed = listedOf(expert);
      void* const results = shape_.training ? resultsOf(listed) : rows_.get();
      router_->gather(listed, input, rows_.get(), stream);
      const std::int64_t begins[] = {0, listed.count};
      compute_.expertForward(weights, {expert, begins}, rows_.get(), results, stream);
      router_->add(listed, results, partial_.get(), stream);
    }
    if (residual_) {
      moecclResult_t result = residual_->forward(weights.residual, input, stream);
      if (result == moecclSuccess) result = residual_->addTo(partial_.get(), stream);
      if (result != moecclSuccess) return result;
    }
    return allReduce("AllReduce", groups_.mp, partial_.get(), output, batch(), stream);
  }

  moecclResult_t backward(const LayerWeights& weights, const void* outputGradient,
                          const double* sumGradients, const LayerGradients& gradients,
                          void* inputGradient, moecclStream_t stream) override {
    const std::int64_t perChoice = shape_.tokens * shape_.choices;
    void* const weightGradients = compute_.at(partial_.get(), batch());
    compute_.zero(partial_.get(), batch() + perChoice, stream);
    if (residual_) {
      moecclResult_t result = residual_->backward(weights.residual, outputGradient, stream);
      if (result == moecclSuccess) result = residual_->addTo(partial_.get(), stream);
      if (result != moecclSuccess) return result;
    }
    for (std::int64_t expert = 0; expert < shape_.localExperts; ++expert) {
      const Router::Listed listed = listedOf(expert);
      router_->gather(listed, router_->keptInput(), rows_.get(), stream);
      router_->addBackward(listed, resultsOf(listed), outputGradient, rowGradients_.get(),
                           weightGradients, stream);
      const std::int64_t begins[] = {0, listed.count};
      compute_.expertBackward(weights, gradients, {expert, begins}, rows_.get(),
                              rowGradients_.get(), stream);
      router_->gatherBackward(listed, rowGradients_.get(), partial_.get(), stream);
    }
    const moecclResult_t result = allReduce("AllReduce", groups_.mp, partial_.get(), partial_.get(),
                                            batch() + perChoice, stream);
    if (result != moecclSuccess) return result;
    compute_.copy(inputGradient, partial_.get(), batch(), stream);
    compute_.copy(router_->weightGradients(), weightGradients, perChoice, stream);
    router_->gateBackward(weights.gate, sumGradients, gradients.gate, inputGradient, stream);
    return residual_ ? residual_->addGradients(gradients.residual, stream) : moecclSuccess;
  }

  void abandon(moecclStream_t stream) override {
    if (residual_) residual_->abandon(stream);
  }

 private:
  std::int64_t batch() const { return elementCount({shape_.tokens, shape_.embedding}); }
  std::int64_t firstExpert() const { return groups_.ep.rank * shape_.localExperts; }

  // Where choices can be dropped there is room for all from the beginning.
  void reserveResults(std::int64_t rows) {
    if (results_ && rows <= resultRows_) return;
    results_.reset();
    results_ = memoryForRows(compute_, rows);
    resultRows_ = rows;
  }

  // The choices of one of the caller's experts. A token chooses it at most once.
  Router::Listed listedOf(std::int64_t localExpert) const {
    const std::int64_t* const begin = begins_ + firstExpert() + localExpert;
    return {begin[0], begin[1] - begin[0]};
  }

  // What one of the caller's experts has returned for them.
  void* resultsOf(Router::Listed listed) const {
    return compute_.at(results_.get(), (listed.begin - begins_[firstExpert()]) * shape_.embedding);
  }

  std::unique_ptr<Router> router_;
  const std::int64_t* begins_ = nullptr;  // as the router's list says
  Memory rows_, rowGradients_;            // of one expert's tokens
  std::int64_t resultRows_ = 0;
  Memory results_;  // [kept choices of the caller's experts][embedding]
  std::optional<Residual> residual_;
  Memory partial_;  // [tokens][embedding], then for backward [tokens][choices]
};

}  // namespace

std::unique_ptr<Schedule> ppMoeSchedule(const Groups& groups, Compute& compute) {
  return std::make_unique<PpMoe>(groups, compute);
}

}  // namespace moeccl
