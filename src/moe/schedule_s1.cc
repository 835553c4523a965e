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
//
// Backward, the same upwards:
//
//   outputGradient   [tokens]                             the same on all ranks of the MP group
//     | MP-Split: the MP-AllGather mirrored
//   part             [padded tokens / N_MP]               the caller's
//     | weighted to the choices' places; with what experts returned: the weights' gradients
//   rows             [E][C]
//     | dispatch: the combine mirrored
//                    [E_local][P][C]
//     | experts: their weights' gradients, and partial sums of their inputs'
//                    [E_local][P][C]
//     | combine: the dispatch mirrored
//                    [E][C]
//     | un-permute, and the gate's part
//   part             [padded tokens / N_MP]
//     | MP-AllGather: the MP-Split mirrored
//   inputGradient    [tokens]
//
// The gate's gradients by the parts are added by an AllReduce over the MP group. Beside that as many
// bytes leave a rank as forward.
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
        router_(shape, 1, shape.training),
        slots_(shape.capacity() / shape.grid.nMp) {
    if (shape.grid.nMp > 1 && shape.paddedTokens() > shape.tokens)
      padded_.resize(
          static_cast<std::size_t>(elementCount({shape.paddedTokens(), shape.embedding})));
    if (!shape.training) return;
    keepRows(elementCount({shape.experts, slots_, shape.embedding}));
    gateGradient_.resize(static_cast<std::size_t>(
        elementCount({shape.embedding, shape.experts, isNoisy() ? 2 : 1})));
  }

  moecclResult_t forward(const LayerWeights& weights, std::int64_t step, const float* input,
                         float* output, BatchSums& sums) override {
    const float* const tokens = input + firstElement();
    router_.route(weights.gate, drawOf(step, groups_.world.rank), tokens, groups_.mp.rank, 1, sums);
    router_.scatter(tokens, slots_, rows());

    moecclResult_t result = dispatchRows(slots_);
    if (result != moecclSuccess) return result;
    runExperts(weights, groups_.world.ranks * slots_);
    result = combineRows(slots_);
    if (result != moecclSuccess) return result;

    // From here on `input` is not needed, so output may be the same.
    keepResults();
    router_.combine(rows(), slots_, partOf(output));
    result = gatherParts(output);
    if (result != moecclSuccess) return result;
    return gatherSums(sums);
  }

  moecclResult_t backward(const LayerWeights& weights, const float* outputGradient,
                          const double* sumGradients, const LayerGradients& gradients,
                          float* inputGradient) override {
    router_.combineBackward(keptResults(), outputGradient + firstElement(), slots_, rows());
    moecclResult_t result = dispatchRows(slots_);
    if (result != moecclSuccess) return result;
    runExpertsBackward(weights, gradients, groups_.world.ranks * slots_);
    result = combineRows(slots_);
    if (result != moecclSuccess) return result;

    router_.scatterBackward(rows(), slots_, partOf(inputGradient));
    std::ranges::fill(gateGradient_, 0.0f);
    router_.gateBackward(
        weights.gate, sumGradients,
        {gateGradient_.data(), isNoisy() ? gateGradient_.data() + gateMatrix() : nullptr},
        partOf(inputGradient));
    result = gatherParts(inputGradient);
    if (result != moecclSuccess) return result;
    return addGateGradient(gradients.gate);
  }

 private:
  // Where the caller's part begins; behind the last token when it has none.
  std::int64_t firstElement() const {
    return std::min(shape_.tokens, groups_.mp.rank * shape_.partTokens) * shape_.embedding;
  }

  // The caller's part of a batch that gatherParts completes.
  float* partOf(float* batch) {
    return (padded_.empty() ? batch : padded_.data()) + firstElement();
  }

  moecclResult_t gatherParts(float* batch) {
    float* const gathered = padded_.empty() ? batch : padded_.data();
    const moecclResult_t result = allGatherInPlace("MP-AllGather", groups_.mp, gathered,
                                                   shape_.partTokens * shape_.embedding);
    if (result == moecclSuccess && gathered != batch)
      std::copy_n(gathered, shape_.tokens * shape_.embedding, batch);
    return result;
  }

  std::int64_t gateMatrix() const { return shape_.embedding * shape_.experts; }
  bool isNoisy() const { return shape_.gate.kind == gates::Kind::noisy; }

  // All ranks of the MP group take part, whichever of them want the gradient.
  moecclResult_t addGateGradient(const GateGradients& sums) {
    if (groups_.mp.ranks > 1) {
      const moecclResult_t result =
          moecclAllReduce(gateGradient_.data(), gateGradient_.data(), gateGradient_.size(),
                          moecclFloat32, moecclSum, groups_.mp.comm, nullptr);
      if (noted("MP-AllReduce of the gate's gradient", result) != moecclSuccess) return result;
    }
    const auto add = [&](float* sum, std::int64_t begin) {
      for (std::int64_t i = 0; i < gateMatrix() && sum != nullptr; ++i)
        sum[i] += gateGradient_[begin + i];
    };
    add(sums.gate, 0);
    add(sums.noise, gateMatrix());
    return moecclSuccess;
  }

  moecclResult_t gatherSums(BatchSums& sums) {
    if (groups_.mp.ranks == 1) return moecclSuccess;
    return noted("MP-AllGather of the gate's sums",
                 moecclAllGather(sums.row(groups_.mp.rank), sums.rows(),
                                 static_cast<std::size_t>(sums.rowSize()), moecclFloat64,
                                 groups_.mp.comm, nullptr));
  }

  Router router_;
  std::int64_t slots_;               // per expert of one part
  std::vector<float> padded_;        // a batch, where parts need more room than the caller's has
  std::vector<float> gateGradient_;  // of the gate, and of its noise, by the caller's part
};

}  // namespace

std::unique_ptr<Schedule> s1Schedule(const LayerShape& shape, const Groups& groups) {
  return std::make_unique<S1>(shape, groups);
}

}  // namespace moeccl
