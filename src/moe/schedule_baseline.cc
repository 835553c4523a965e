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
#include "src/moe/router.h"
#include "src/moe/schedule.h"

namespace moeccl {
namespace {

class Baseline final : public Schedule {
 public:
  Baseline(const Groups& groups, Compute& compute)
      : Schedule(groups, compute),
        mine_(compute.router(shape_.paddedTokens(), shape_.training)),
        other_(compute.router(groups.esp.ranks > 1 ? shape_.paddedTokens() : 0, false)),
        otherSums_(compute),
        places_(compute, elementCount({shape_.experts, groups.esp.ranks, shape_.capacity(),
                                       shape_.embedding})) {
    compute.reserveRows(shape_.localExperts * groups.world.ranks * shape_.capacity());
    if (groups.esp.ranks > 1)
      gathered_ =
          compute.elements(elementCount({groups.esp.ranks, shape_.tokens, shape_.embedding}));
    if (shape_.training)
      places_.keepForBackward(elementCount({shape_.experts, shape_.capacity(), shape_.embedding}));
  }

  moecclResult_t forward(const LayerWeights& weights, std::int64_t step, const void* input,
                         void* output, BatchSums& sums, moecclStream_t stream) override {
    const std::int64_t batch = shape_.tokens * shape_.embedding;
    const void* batches = input;
    if (groups_.esp.ranks > 1) {
      const moecclResult_t result =
          moecclAllGather(input, gathered_.get(), static_cast<std::size_t>(batch), shape_.datatype,
                          groups_.esp.comm, stream);
      if (noted("ESP-AllGather", result) != moecclSuccess) return result;
      batches = gathered_.get();
    }
    const std::int64_t perBatch = shape_.capacity() * shape_.embedding;  // and expert
    for (int shard = 0; shard < groups_.esp.ranks; ++shard) {
      const bool own = shard == groups_.esp.rank;
      Router& router = own ? *mine_ : *other_;
      const void* const tokens = compute_.at(batches, shard * batch);
      router.routeBatch(weights.gate, drawOf(step, worldRank(groups_.ep.rank, shard)), tokens,
                        own ? sums : otherSums_, stream);
      router.scatter(tokens, groups_.esp.ranks * shape_.capacity(),
                     compute_.at(places_.rows(), shard * perBatch), stream);
    }

    const std::int64_t perSource = groups_.esp.ranks * perBatch;
    moecclResult_t result =
        allToAll("first EP-AlltoAll", groups_.ep, places_, shape_.localExperts * perSource, stream);
    if (result != moecclSuccess) return result;
    transpose(places_, groups_.ep.ranks, shape_.localExperts, perSource, stream);
    runExperts(weights, places_, groups_.ep.ranks * groups_.esp.ranks * shape_.capacity(), stream);
    result = addShards(shape_.experts * perSource, stream);
    if (result != moecclSuccess) return result;
    splitShards(perBatch, stream);
    result =
        allToAll("second EP-AlltoAll", groups_.ep, places_, shape_.localExperts * perBatch, stream);
    if (result != moecclSuccess) return result;
    places_.keepResults(stream);
    mine_->combine(places_.rows(), shape_.capacity(), output, stream);
    return moecclSuccess;
  }

  moecclResult_t backward(const LayerWeights& weights, const void* outputGradient,
                          const double* sumGradients, const LayerGradients& gradients,
                          void* inputGradient, moecclStream_t stream) override {
    const std::int64_t perBatch = shape_.capacity() * shape_.embedding;  // and expert
    const std::int64_t shards = groups_.esp.ranks, sources = groups_.ep.ranks;
    const std::int64_t perSource = shape_.localExperts * perBatch;
    mine_->combineBackward(places_.keptResults(), outputGradient, shape_.capacity(), places_.rows(),
                           stream);
    moecclResult_t result = allToAll("first EP-AlltoAll", groups_.ep, places_, perSource, stream);
    if (result != moecclSuccess) return result;
    result = allGather("ESP-AllGather", groups_.esp, places_, sources * perSource, stream);
    if (result != moecclSuccess) return result;
    transpose(places_, shards, shape_.experts, perBatch, stream);
    transpose(places_, sources, shape_.localExperts, shards * perBatch, stream);
    runSourcesBackward(weights, gradients, stream);
    transpose(places_, shape_.localExperts, sources, shards * perBatch, stream);
    transpose(places_, shape_.experts, shards, perBatch, stream);
    result = reduceScatter("ESP-ReduceScatter", groups_.esp, places_, sources * perSource, stream);
    if (result != moecclSuccess) return result;
    result = allToAll("second EP-AlltoAll", groups_.ep, places_, perSource, stream);
    if (result != moecclSuccess) return result;
    mine_->scatterBackward(places_.rows(), shape_.capacity(), inputGradient, stream);
    mine_->gateBackward(weights.gate, sumGradients, gradients.gate, inputGradient, stream);
    return moecclSuccess;
  }

 private:
  // As runExpertsBackward, of places_ [E_local][N_EP][N_ESP][C]; weights get the gradients of one rank
  // of each MP group.
  void runSourcesBackward(const LayerWeights& weights, const LayerGradients& gradients,
                          moecclStream_t stream) {
    const std::int64_t begins[] = {0, shape_.capacity()};
    std::int64_t begin = 0;
    for (std::int64_t expert = 0; expert < shape_.localExperts; ++expert)
      for (int ep = 0; ep < groups_.ep.ranks; ++ep)
        for (int esp = 0; esp < groups_.esp.ranks; ++esp) {
          const bool counts = worldRank(ep, esp) % shape_.grid.nMp == 0;
          compute_.expertBackward(weights, counts ? gradients : LayerGradients{}, {expert, begins},
                                  compute_.at(places_.keptInputs(), begin),
                                  compute_.at(places_.rows(), begin), stream);
          begin += shape_.capacity() * shape_.embedding;
        }
  }

  moecclResult_t addShards(std::int64_t count, moecclStream_t stream) {
    if (groups_.esp.ranks == 1) return moecclSuccess;
    return allReduce("ESP-AllReduce", groups_.esp, places_.rows(), places_.rows(), count, stream);
  }

  // places_ [E_local][N_EP][N_ESP][perBatch] -> the caller's [N_EP][E_local][perBatch].
  void splitShards(std::int64_t perBatch, moecclStream_t stream) {
    compute_.transpose(places_.spare(), compute_.at(places_.rows(), groups_.esp.rank * perBatch),
                       shape_.localExperts, groups_.ep.ranks, perBatch,
                       groups_.esp.ranks * perBatch, stream);
    places_.swap();
  }

  std::unique_ptr<Router> mine_, other_;  // the caller's batch is needed again at the end
  BatchSums otherSums_;
  Places places_;
  Memory gathered_;  // [N_ESP][tokens][embedding]
};

}  // namespace

std::unique_ptr<Schedule> baselineSchedule(const Groups& groups, Compute& compute) {
  return std::make_unique<Baseline>(groups, compute);
}

}  // namespace moeccl
