// S1: MP is paused before the gate and resumed after the combine (Parm III-B, figure 3(b)). With
// C = T / N_MP, the places per expert of one part, and every array followed by [embedding]:
//
//   input            [tokens]
//     | MP-Split
//   part             [padded tokens / N_MP]               the caller's
//     | gate
//   rows             [E][C]
//     | dump: the block of an EP rank's experts, once for each shard
//                    [P][E_local][C]                      by the rank it goes to
//     | EP&ESP-AlltoAll
//                    [P][E_local][C]                      by the rank it came from
//     | transpose
//                    [E_local][P][C]
//     | experts: partial sums, of the caller's hidden units
//     | transpose
//                    [P][E_local][C]
//     | EP&ESP-AlltoAll
//                    [P][E_local][C]                      by the shard that computed it
//     | sum over shards, in shard order
//                    [E][C]
//     | un-permute, weighted
//   part             [padded tokens / N_MP]
//     | MP-AllGather
//   output           [tokens]
//
// The gate's sums over the parts are gathered too, since the loss is that of the whole batch.
//
// Bytes that leave a rank, with x = B L M s, y = E T M N_ESP s: (1 - 1 / P) y / N_MP in each
// EP&ESP-AlltoAll, (1 - 1 / N_MP) x in the MP-AllGather.
#include <algorithm>

#include "kernels/copy.h"
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

    const std::int64_t block = shape_.localExperts * slots_ * shape_.embedding;
    const std::int64_t perExpert = slots_ * shape_.embedding;
    dump(block);
    moecclResult_t result = allToAllRows("first EP&ESP-AlltoAll", groups_.world, block);
    if (result != moecclSuccess) return result;
    transposeRows(groups_.world.ranks, shape_.localExperts, perExpert);
    runExperts(weights, groups_.world.ranks * slots_);
    transposeRows(shape_.localExperts, groups_.world.ranks, perExpert);
    result = allToAllRows("second EP&ESP-AlltoAll", groups_.world, block);
    if (result != moecclSuccess) return result;
    sumOverShards(block);

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
  // rows() [N_EP][block] -> [P][block], the blocks of an EP rank at each of its shards' ranks.
  void dump(std::int64_t block) {
    if (groups_.esp.ranks == 1) return;
    for (int ep = 0; ep < groups_.ep.ranks; ++ep)
      for (int shard = 0; shard < groups_.esp.ranks; ++shard)
        std::copy_n(rows() + ep * block, block, spare() + groups_.worldRank(ep, shard) * block);
    swap();
  }

  // rows() [P][block] -> [N_EP][block].
  void sumOverShards(std::int64_t block) {
    if (groups_.esp.ranks == 1) return;
    const std::int64_t stride = (groups_.worldRank(0, 1) - groups_.worldRank(0, 0)) * block;
    for (int ep = 0; ep < groups_.ep.ranks; ++ep)
      sumShards(rows() + groups_.worldRank(ep, 0) * block, stride, block, spare() + ep * block);
    swap();
  }

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
