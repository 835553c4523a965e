// The baseline: DeepSpeed-MoE with expert sharding, as Parm draws it (figure 3(a)). With C = T, the
// places per expert of one batch, and every array followed by [embedding]:
//
//   input            [tokens]
//     | ESP-AllGather
//   gathered         [N_ESP][tokens]                      the batches of the ESP group's ranks
//     | gate, each batch by itself
//   rows             [N_EP][E_local][N_ESP][C]            an expert's EP rank comes first
//     | EP-AlltoAll
//                    [N_EP][E_local][N_ESP][C]            now by the EP rank it came from
//     | transpose
//                    [E_local][N_EP][N_ESP][C]
//     | experts: partial sums, of the caller's hidden units
//     | ESP-AllReduce
//     | ESP-Split: the caller's own batch of the N_ESP
//                    [N_EP][E_local][C]
//     | EP-AlltoAll
//                    [E][C]
//     | un-permute, weighted
//   output           [tokens]
//
// The ranks of an MP group bring the same batch, so every expert computes it N_MP times.
//
// Bytes that leave a rank, with x = B L M s, y = E T M N_ESP s: (N_ESP - 1) x in the AllGather,
// 2 (1 - 1 / N_ESP) y in the AllReduce, (1 - 1 / N_EP) y in the first EP-AlltoAll, and 1 / N_ESP of
// that in the second. (The paper's equation 1 charges y for the second too, as if the split came
// after it.)
//
// Backward:
//
//   outputGradient   [tokens]                             the same on all ranks of the MP group
//     | weighted to the choices' places; with what experts returned: the weights' gradients
//   rows             [N_EP][E_local][C]
//     | EP-AlltoAll
//                    [N_EP][E_local][C]
//     | ESP-AllGather: the ESP-Split mirrored
//                    [N_ESP][N_EP][E_local][C]
//     | transpose
//                    [E_local][N_EP][N_ESP][C]
//     | experts: their weights' gradients, and partial sums of their inputs'
//     | transpose back, ESP-ReduceScatter: adds the shards of the caller's own batch
//                    [N_EP][E_local][C]
//     | EP-AlltoAll
//                    [E][C]
//     | un-permute, and the gate's part
//   inputGradient    [tokens]
//
// (Forward strictly mirrored, rows would go back in an EP-AlltoAll N_ESP times as large, and be added as
// tokens.) Of the N_MP copies of a token only the one of the MP group's first rank counts for the
// weights.
//
// Bytes that leave a rank: (1 - 1 / N_ESP) y in the AllGather and in the ReduceScatter, and
// (1 - 1 / N_EP) y / N_ESP in each EP-AlltoAll.
#include "kernels/copy.h"
#include "src/moe/schedule.h"

namespace moeccl {
namespace {

class Baseline final : public Schedule {
 public:
  Baseline(const LayerShape& shape, const Groups& groups)
      : Schedule(shape, groups),
        mine_(shape, shape.paddedTokens(), shape.training),
        other_(shape, shape.grid.nEsp > 1 ? shape.paddedTokens() : 0, false),
        otherSums_(shape),
        places_(elementCount({shape.experts, shape.grid.nEsp, shape.capacity(), shape.embedding})) {
    if (groups.esp.ranks > 1)
      gathered_.resize(static_cast<std::size_t>(
          elementCount({groups.esp.ranks, shape.tokens, shape.embedding})));
    if (shape.training)
      places_.keepForBackward(elementCount({shape.experts, shape.capacity(), shape.embedding}));
  }

  moecclResult_t forward(const LayerWeights& weights, std::int64_t step, const float* input,
                         float* output, BatchSums& sums) override {
    const std::int64_t batch = shape_.tokens * shape_.embedding;
    const float* batches = input;
    if (groups_.esp.ranks > 1) {
      const moecclResult_t result =
          moecclAllGather(input, gathered_.data(), static_cast<std::size_t>(batch), moecclFloat32,
                          groups_.esp.comm, nullptr);
      if (noted("ESP-AllGather", result) != moecclSuccess) return result;
      batches = gathered_.data();
    }
    for (int shard = 0; shard < groups_.esp.ranks; ++shard) {
      const bool own = shard == groups_.esp.rank;
      Router& router = own ? mine_ : other_;
      const float* const tokens = batches + shard * batch;
      router.routeBatch(weights.gate, drawOf(step, worldRank(groups_.ep.rank, shard)), tokens,
                        own ? sums : otherSums_);
      router.scatter(tokens, groups_.esp.ranks * shape_.capacity(),
                     places_.rows() + shard * shape_.capacity() * shape_.embedding);
    }

    const std::int64_t perBatch = shape_.capacity() * shape_.embedding;  // and expert
    const std::int64_t perSource = groups_.esp.ranks * perBatch;
    moecclResult_t result =
        allToAll("first EP-AlltoAll", groups_.ep, places_, shape_.localExperts * perSource);
    if (result != moecclSuccess) return result;
    transpose(places_, groups_.ep.ranks, shape_.localExperts, perSource);
    runExperts(weights, places_, groups_.ep.ranks * groups_.esp.ranks * shape_.capacity());
    result = allReduce("ESP-AllReduce", groups_.esp, places_, shape_.experts * perSource);
    if (result != moecclSuccess) return result;
    splitShards(perBatch);
    result = allToAll("second EP-AlltoAll", groups_.ep, places_, shape_.localExperts * perBatch);
    if (result != moecclSuccess) return result;
    places_.keepResults();
    mine_.combine(places_.rows(), shape_.capacity(), output);
    return moecclSuccess;
  }

  moecclResult_t backward(const LayerWeights& weights, const float* outputGradient,
                          const double* sumGradients, const LayerGradients& gradients,
                          float* inputGradient) override {
    const std::int64_t perBatch = shape_.capacity() * shape_.embedding;  // and expert
    const std::int64_t shards = groups_.esp.ranks, sources = groups_.ep.ranks;
    mine_.combineBackward(places_.keptResults(), outputGradient, shape_.capacity(), places_.rows());
    moecclResult_t result =
        allToAll("first EP-AlltoAll", groups_.ep, places_, shape_.localExperts * perBatch);
    if (result != moecclSuccess) return result;
    result = allGather("ESP-AllGather", groups_.esp, places_, shape_.experts * perBatch);
    if (result != moecclSuccess) return result;
    transpose(places_, shards, shape_.experts, perBatch);
    transpose(places_, sources, shape_.localExperts, shards * perBatch);
    runSourcesBackward(weights, gradients);
    transpose(places_, shape_.localExperts, sources, shards * perBatch);
    transpose(places_, shape_.experts, shards, perBatch);
    result = reduceScatter("ESP-ReduceScatter", groups_.esp, places_, shape_.experts * perBatch);
    if (result != moecclSuccess) return result;
    result = allToAll("second EP-AlltoAll", groups_.ep, places_, shape_.localExperts * perBatch);
    if (result != moecclSuccess) return result;
    mine_.scatterBackward(places_.rows(), shape_.capacity(), inputGradient);
    mine_.gateBackward(weights.gate, sumGradients, gradients.gate, inputGradient);
    return moecclSuccess;
  }

 private:
  // As runExpertsBackward, of places_ [E_local][N_EP][N_ESP][C]; weights get the gradients of one rank
  // of each MP group.
  void runSourcesBackward(const LayerWeights& weights, const LayerGradients& gradients) {
    std::int64_t begin = 0;
    for (std::int64_t expert = 0; expert < shape_.localExperts; ++expert)
      for (int ep = 0; ep < groups_.ep.ranks; ++ep)
        for (int esp = 0; esp < groups_.esp.ranks; ++esp) {
          const bool counts = worldRank(ep, esp) % shape_.grid.nMp == 0;
          runExpertBackward(weights, counts ? gradients : LayerGradients{}, expert,
                            shape_.capacity(), places_.keptInputs() + begin,
                            places_.rows() + begin);
          begin += shape_.capacity() * shape_.embedding;
        }
  }

  int worldRank(int ep, int esp) const {
    const moecclGridShape_t& grid = shape_.grid;
    return grid.order == moecclOrderEspEp ? ep * grid.nEsp + esp : esp * grid.nEp + ep;
  }

  // places_ [E_local][N_EP][N_ESP][perBatch] -> the caller's [N_EP][E_local][perBatch].
  void splitShards(std::int64_t perBatch) {
    const std::int64_t shards = groups_.esp.ranks, sources = groups_.ep.ranks;
    const auto block = static_cast<std::ptrdiff_t>(perBatch * sizeof(float));
    const auto* from =
        reinterpret_cast<const std::byte*>(places_.rows()) + groups_.esp.rank * block;
    auto* to = reinterpret_cast<std::byte*>(places_.spare());
    for (std::int64_t expert = 0; expert < shape_.localExperts; ++expert)
      copyBlocks(to + expert * block, shape_.localExperts * block,
                 from + expert * sources * shards * block, shards * block,
                 static_cast<std::size_t>(block), sources);
    places_.swap();
  }

  Router mine_, other_;  // the caller's batch is needed again at the end
  BatchSums otherSums_;
  Places places_;
  std::vector<float> gathered_;
};

}  // namespace

std::unique_ptr<Schedule> baselineSchedule(const LayerShape& shape, const Groups& groups) {
  return std::make_unique<Baseline>(shape, groups);
}

}  // namespace moeccl
