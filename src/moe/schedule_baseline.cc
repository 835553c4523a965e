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
      : Schedule(shape, groups,
                 elementCount({shape.experts, shape.grid.nEsp, shape.capacity(), shape.embedding})),
        mine_(shape, shape.grid.nMp, shape.training),
        other_(shape, shape.grid.nEsp > 1 ? shape.grid.nMp : 0, false),
        otherSums_(shape) {
    if (groups.esp.ranks > 1)
      gathered_.resize(static_cast<std::size_t>(
          elementCount({groups.esp.ranks, shape.tokens, shape.embedding})));
    if (shape.training) keepRows(elementCount({shape.experts, shape.capacity(), shape.embedding}));
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
      router.route(weights.gate, drawOf(step, worldRank(groups_.ep.rank, shard)), tokens, 0,
                   shape_.grid.nMp, own ? sums : otherSums_);
      router.scatter(tokens, groups_.esp.ranks * shape_.capacity(),
                     rows() + shard * shape_.capacity() * shape_.embedding);
    }

    const std::int64_t places = shape_.capacity() * shape_.embedding;
    const std::int64_t perSource = groups_.esp.ranks * places;
    moecclResult_t result =
        allToAllRows("first EP-AlltoAll", groups_.ep, shape_.localExperts * perSource);
    if (result != moecclSuccess) return result;
    transposeRows(groups_.ep.ranks, shape_.localExperts, perSource);
    runExperts(weights, groups_.ep.ranks * groups_.esp.ranks * shape_.capacity());
    result = allReduceRows("ESP-AllReduce", groups_.esp, shape_.experts * perSource);
    if (result != moecclSuccess) return result;
    splitShards(places);
    result = allToAllRows("second EP-AlltoAll", groups_.ep, shape_.localExperts * places);
    if (result != moecclSuccess) return result;
    keepResults();
    mine_.combine(rows(), shape_.capacity(), output);
    return moecclSuccess;
  }

  moecclResult_t backward(const LayerWeights& weights, const float* outputGradient,
                          const double* sumGradients, const LayerGradients& gradients,
                          float* inputGradient) override {
    const std::int64_t places = shape_.capacity() * shape_.embedding;
    const std::int64_t shards = groups_.esp.ranks, sources = groups_.ep.ranks;
    mine_.combineBackward(keptResults(), outputGradient, shape_.capacity(), rows());
    moecclResult_t result =
        allToAllRows("first EP-AlltoAll", groups_.ep, shape_.localExperts * places);
    if (result != moecclSuccess) return result;
    result = allGatherRows("ESP-AllGather", groups_.esp, shape_.experts * places);
    if (result != moecclSuccess) return result;
    transposeRows(shards, shape_.experts, places);
    transposeRows(sources, shape_.localExperts, shards * places);
    runSourcesBackward(weights, gradients);
    transposeRows(shape_.localExperts, sources, shards * places);
    transposeRows(shape_.experts, shards, places);
    result = reduceScatterRows("ESP-ReduceScatter", groups_.esp, shape_.experts * places);
    if (result != moecclSuccess) return result;
    result = allToAllRows("second EP-AlltoAll", groups_.ep, shape_.localExperts * places);
    if (result != moecclSuccess) return result;
    mine_.scatterBackward(rows(), shape_.capacity(), inputGradient);
    mine_.gateBackward(weights.gate, sumGradients, gradients.gate, inputGradient);
    return moecclSuccess;
  }

 private:
  // As runExpertsBackward of rows() [E_local][N_EP][N_ESP][C]; weights get the gradients of one rank of
  // each MP group.
  void runSourcesBackward(const LayerWeights& weights, const LayerGradients& gradients) {
    std::int64_t begin = 0;
    for (std::int64_t expert = 0; expert < shape_.localExperts; ++expert)
      for (int ep = 0; ep < groups_.ep.ranks; ++ep)
        for (int esp = 0; esp < groups_.esp.ranks; ++esp) {
          const bool counts = worldRank(ep, esp) % shape_.grid.nMp == 0;
          runExpertBackward(weights, counts ? gradients : LayerGradients{}, expert,
                            shape_.capacity(), keptInputs() + begin, rows() + begin);
          begin += shape_.capacity() * shape_.embedding;
        }
  }

  int worldRank(int ep, int esp) const {
    const moecclGridShape_t& grid = shape_.grid;
    return grid.order == moecclOrderEspEp ? ep * grid.nEsp + esp : esp * grid.nEp + ep;
  }

  // rows() [E_local][N_EP][N_ESP][places] -> the caller's [N_EP][E_local][places].
  void splitShards(std::int64_t places) {
    const std::int64_t shards = groups_.esp.ranks, sources = groups_.ep.ranks;
    const auto block = static_cast<std::ptrdiff_t>(places * sizeof(float));
    const auto* from = reinterpret_cast<const std::byte*>(rows()) + groups_.esp.rank * block;
    auto* to = reinterpret_cast<std::byte*>(spare());
    for (std::int64_t expert = 0; expert < shape_.localExperts; ++expert)
      copyBlocks(to + expert * block, shape_.localExperts * block,
                 from + expert * sources * shards * block, shards * block,
                 static_cast<std::size_t>(block), sources);
    swap();
  }

  Router mine_, other_;  // the caller's batch is needed again at the end
  BatchSums otherSums_;
  std::vector<float> gathered_;
};

}  // namespace

std::unique_ptr<Schedule> baselineSchedule(const LayerShape& shape, const Groups& groups) {
  return std::make_unique<Baseline>(shape, groups);
}

}  // namespace moeccl
