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
#include <algorithm>

#include "src/moe/schedule.h"

namespace moeccl {
namespace {

class PpMoe final : public Schedule {
 public:
  PpMoe(const LayerShape& shape, const Groups& groups)
      : Schedule(shape, groups, elementCount({shape.tokens, shape.embedding})),
        router_(shape, shape.grid.nMp),
        begins_(static_cast<std::size_t>(shape.experts) + 1),
        listed_(static_cast<std::size_t>(elementCount({shape.tokens, shape.choices}))) {}

  moecclResult_t forward(const LayerWeights& weights, const float* input, float* output,
                         BatchSums& sums) override {
    router_.route(weights.gate, input, 0, shape_.grid.nMp, sums);
    const Choices choices = router_.choices();
    listByExpert(choices, shape_.experts, begins_.data(), listed_.data());

    float* const partial = spare();
    const std::int64_t batch = shape_.tokens * shape_.embedding;
    std::fill_n(partial, batch, 0.0f);
    for (std::int64_t expert = 0; expert < shape_.localExperts; ++expert) {
      const std::span<const std::int64_t> listed = listedOf(expert);
      gatherListed(choices, listed, input, shape_.embedding, rows());
      runExpert(weights, expert, static_cast<std::int64_t>(listed.size()), rows());
      addListed(choices, listed, rows(), shape_.embedding, partial);
    }
    return noted("AllReduce", moecclAllReduce(partial, output, static_cast<std::size_t>(batch),
                                              moecclFloat32, moecclSum, groups_.mp.comm, nullptr));
  }

 private:
  // The choices of one of the caller's experts. A token chooses it at most once.
  std::span<const std::int64_t> listedOf(std::int64_t localExpert) const {
    const std::int64_t expert = groups_.ep.rank * shape_.localExperts + localExpert;
    return {listed_.data() + begins_[expert], listed_.data() + begins_[expert + 1]};
  }

  Router router_;
  std::vector<std::int64_t> begins_, listed_;  // as listByExpert makes them
};

}  // namespace

std::unique_ptr<Schedule> ppMoeSchedule(const LayerShape& shape, const Groups& groups) {
  return std::make_unique<PpMoe>(shape, groups);
}

}  // namespace moeccl
