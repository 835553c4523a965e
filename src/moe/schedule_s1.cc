// S1: MP is paused before the gate and resumed after the combine (Parm III-B, figure 3(b)). With
// C = T / N_MP, the places per expert of one part, and every array followed by [embedding]:
//
//   input            [tokens]
//     | MP-Split
//   part             [padded tokens / N_MP]               the caller's
//     | gate
//   rows             [E][C]
//     | dispatch
//                    [E_local][P][C]                      by the rank it came from
//     | experts: partial sums, of the caller's hidden units
//                    [E_local][P][C]
//     | combine: sums over the shards
//                    [E][C]
//     | un-permute, weighted
//   part             [padded tokens / N_MP]
//     | MP-AllGather
//   output           [tokens]
//
// The gate's sums over the parts are gathered too, since the loss is that of the whole batch.
//
// Bytes that leave a rank, with x = B L M s, y = E T M N_ESP s: (1 - 1 / P) y / N_MP in dispatch and
// in combine when every shard gets a copy of its own (flat), (1 - 1 / N_MP) x in the MP-AllGather.
#include <algorithm>

#include "src/moe/schedule.h"

namespace moeccl {
namespace {

class S1 final : public Schedule {
 public:
  S1(const LayerShape& shape, const Groups& groups)
      : Schedule(shape, groups,
                 elementCount({shape.experts, shape.grid.nEsp, shape.capacity() / shape.grid.nMp,
                               shape.embedding})),
        router_(shape, 1),
        slots_(shape.capacity() / shape.grid.nMp) {
    if (shape.grid.nMp > 1 && shape.paddedTokens() > shape.tokens)
      padded_.resize(
          static_cast<std::size_t>(elementCount({shape.paddedTokens(), shape.embedding})));
  }

  moecclResult_t forward(const LayerWeights& weights, const float* input, float* output,
                         BatchSums& sums) override {
    const int part = groups_.mp.rank;
    const std::int64_t first = std::min(shape_.tokens, part * shape_.partTokens);
    const float* const tokens = input + first * shape_.embedding;
    router_.route(weights.gate, tokens, part, 1, sums);
    router_.scatter(tokens, slots_, rows());

    moecclResult_t result = dispatchRows(slots_);
    if (result != moecclSuccess) return result;
    runExperts(weights, groups_.world.ranks * slots_);
    result = combineRows(slots_);
    if (result != moecclSuccess) return result;

    // From here on `input` is not needed, so output may be the same.
    float* const gathered = padded_.empty() ? output : padded_.data();
    router_.combine(rows(), slots_, gathered + first * shape_.embedding);
    result = allGatherInPlace("MP-AllGather", groups_.mp, gathered,
                              shape_.partTokens * shape_.embedding);
    if (result != moecclSuccess) return result;
    if (gathered != output) std::copy_n(gathered, shape_.tokens * shape_.embedding, output);
    return gatherSums(sums);
  }

 private:
  moecclResult_t gatherSums(BatchSums& sums) {
    if (groups_.mp.ranks == 1) return moecclSuccess;
    return noted("MP-AllGather of the gate's sums",
                 moecclAllGather(sums.row(groups_.mp.rank), sums.rows(),
                                 static_cast<std::size_t>(sums.rowSize()), moecclFloat64,
                                 groups_.mp.comm, nullptr));
  }

  Router router_;
  std::int64_t slots_;  // per expert of one part
  std::vector<float> padded_;
};

}  // namespace

std::unique_ptr<Schedule> s1Schedule(const LayerShape& shape, const Groups& groups) {
  return std::make_unique<S1>(shape, groups);
}

}  // namespace moeccl
