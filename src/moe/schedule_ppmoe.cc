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
// No place is left empty, so nothing is padded; capacity only drops choices.
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
#include <span>

#include "src/moe/schedule.h"

namespace moeccl {
namespace {

class PpMoe final : public Schedule {
 public:
  PpMoe(const LayerShape& shape, const Groups& groups)
      : Schedule(shape, groups),
        router_(shape, shape.paddedTokens(), shape.training),
        places_(elementCount({shape.tokens, shape.embedding})),
        begins_(static_cast<std::size_t>(shape.experts) + 1),
        listed_(static_cast<std::size_t>(elementCount({shape.tokens, shape.choices}))) {
    if (!shape.training) return;
    const std::int64_t rows = std::min(elementCount({shape.localExperts, shape.capacity()}),
                                       elementCount({shape.tokens, shape.choices}));
    results_.resize(static_cast<std::size_t>(elementCount({rows, shape.embedding})));
    partial_.resize(
        static_cast<std::size_t>(elementCount({shape.tokens, shape.embedding + shape.choices})));
  }

  moecclResult_t forward(const LayerWeights& weights, std::int64_t step, const float* input,
                         float* output, BatchSums& sums) override {
    router_.routeBatch(weights.gate, drawOf(step, groups_.world.rank), input, sums);
    const Choices choices = router_.choices();
    listByExpert(choices, shape_.experts, begins_.data(), listed_.data());

    float* const partial = places_.spare();
    const std::int64_t batch = shape_.tokens * shape_.embedding;
    std::fill_n(partial, batch, 0.0f);
    for (std::int64_t expert = 0; expert < shape_.localExperts; ++expert) {
      const std::span<const std::int64_t> listed = listedOf(expert);
      float* const results = shape_.training ? resultsOf(expert) : places_.rows();
      gatherListed(choices, listed, input, shape_.embedding, places_.rows());
      runExpert(weights, expert, static_cast<std::int64_t>(listed.size()), places_.rows(), results);
      addListed(choices, listed, results, shape_.embedding, partial);
    }
    return noted("AllReduce", moecclAllReduce(partial, output, static_cast<std::size_t>(batch),
                                              moecclFloat32, moecclSum, groups_.mp.comm, nullptr));
  }

  moecclResult_t backward(const LayerWeights& weights, const float* outputGradient,
                          const double* sumGradients, const LayerGradients& gradients,
                          float* inputGradient) override {
    const Choices choices = router_.choices();
    const std::int64_t batch = shape_.tokens * shape_.embedding;
    float* const weightGradients = partial_.data() + batch;
    std::ranges::fill(partial_, 0.0f);
    for (std::int64_t expert = 0; expert < shape_.localExperts; ++expert) {
      const std::span<const std::int64_t> listed = listedOf(expert);
      gatherListed(choices, listed, router_.input(), shape_.embedding, places_.rows());
      addListedBackward(choices, listed, resultsOf(expert), outputGradient, shape_.embedding,
                        places_.spare(), weightGradients);
      runExpertBackward(weights, gradients, expert, static_cast<std::int64_t>(listed.size()),
                        places_.rows(), places_.spare());
      gatherListedBackward(choices, listed, places_.spare(), shape_.embedding, partial_.data());
    }
    const moecclResult_t result =
        moecclAllReduce(partial_.data(), partial_.data(), partial_.size(), moecclFloat32, moecclSum,
                        groups_.mp.comm, nullptr);
    if (noted("AllReduce", result) != moecclSuccess) return result;
    std::copy_n(partial_.data(), batch, inputGradient);
    std::copy_n(weightGradients, shape_.tokens * shape_.choices, router_.weightGradients());
    router_.gateBackward(weights.gate, sumGradients, gradients.gate, inputGradient);
    return moecclSuccess;
  }

 private:
  // The choices of one of the caller's experts. A token chooses it at most once.
  std::span<const std::int64_t> listedOf(std::int64_t localExpert) const {
    const std::int64_t expert = groups_.ep.rank * shape_.localExperts + localExpert;
    return {listed_.data() + begins_[expert], listed_.data() + begins_[expert + 1]};
  }

  // What one of the caller's experts has returned for them.
  float* resultsOf(std::int64_t localExpert) {
    const std::int64_t first = groups_.ep.rank * shape_.localExperts;
    return results_.data() + (begins_[first + localExpert] - begins_[first]) * shape_.embedding;
  }

  Router router_;
  Places places_;                              // of one expert's tokens
  std::vector<std::int64_t> begins_, listed_;  // as listByExpert makes them
  std::vector<float> results_;                 // [kept choices of the caller's experts][embedding]
  std::vector<float> partial_;  // [tokens][embedding], then [tokens][choices]; for backward
};

}  // namespace

std::unique_ptr<Schedule> ppMoeSchedule(const LayerShape& shape, const Groups& groups) {
  return std::make_unique<PpMoe>(shape, groups);
}

}  // namespace moeccl
