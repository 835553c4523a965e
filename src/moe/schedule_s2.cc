// S2: MP is paused after the gate and resumed with the combine (Parm III-B, figure 3(c); III-D). With
// C = T / N_MP, the places per expert of one rank, and every array followed by [embedding]:
//
//   input            [tokens]
//     | gate, the same on all ranks of the MP group
//   rows             [E][N_MP][C]
//     | MP-Split of the capacity, and dispatch
//                    [E_local][P][C]                      by the rank it came from
//     | experts: partial sums, of the caller's hidden units
//                    [E_local][P][C]
//     | SAA: combine and MP-AllGather at once
//                    [E][N_MP][C]
//     | un-permute, weighted
//   output           [tokens]
//
// Rank i of the MP group takes places [i C, (i + 1) C) of every expert to it. Capacity groups may cross
// from one rank's places to the next.
//
// Bytes that leave a rank, with y = E T M N_ESP s: (1 - 1 / P) y / N_MP in the dispatch, as much in the
// SAA, and in its MP-AllGather (1 - 1 / N_MP) y / N_ESP.
//
// Backward, the same upwards:
//
//   outputGradient   [tokens]                             the same on all ranks of the MP group
//     | weighted to the choices' places; with what experts returned: the weights' gradients
//   rows             [E][N_MP][C]
//     | MP-Split of the capacity, and dispatch: the SAA mirrored
//                    [E_local][P][C]
//     | experts: their weights' gradients, and partial sums of their inputs'
//                    [E_local][P][C]
//     | SAA: the dispatch and MP-Split mirrored
//                    [E][N_MP][C]
//     | un-permute, and the gate's part: both the same on all ranks of the MP group
//   inputGradient    [tokens]
//
// As many bytes leave a rank as forward.
#include <algorithm>

#include "src/moe/schedule.h"

namespace moeccl {
namespace {

class S2 final : public Schedule {
 public:
  S2(const LayerShape& shape, const Groups& groups)
      : Schedule(shape, groups,
                 elementCount({shape.experts, std::max(shape.grid.nMp, shape.grid.nEsp),
                               shape.capacity() / shape.grid.nMp, shape.embedding})),
        router_(shape, shape.grid.nMp, shape.training),
        slots_(shape.capacity() / shape.grid.nMp) {
    if (shape.training) keepRows(elementCount({shape.experts, shape.capacity(), shape.embedding}));
  }

  moecclResult_t forward(const LayerWeights& weights, std::int64_t step, const float* input,
                         float* output, BatchSums& sums) override {
    router_.route(weights.gate, drawOf(step, groups_.world.rank), input, 0, shape_.grid.nMp, sums);
    router_.scatter(input, shape_.capacity(), rows());
    moecclResult_t result = splitDispatchRows(slots_);
    if (result != moecclSuccess) return result;
    runExperts(weights, groups_.world.ranks * slots_);
    result = combineAllGatherRows(slots_);
    if (result != moecclSuccess) return result;
    keepResults();
    router_.combine(rows(), shape_.capacity(), output);
    return moecclSuccess;
  }

  moecclResult_t backward(const LayerWeights& weights, const float* outputGradient,
                          const double* sumGradients, const LayerGradients& gradients,
                          float* inputGradient) override {
    router_.combineBackward(keptResults(), outputGradient, shape_.capacity(), rows());
    moecclResult_t result = splitDispatchRows(slots_);
    if (result != moecclSuccess) return result;
    runExpertsBackward(weights, gradients, groups_.world.ranks * slots_);
    result = combineAllGatherRows(slots_);
    if (result != moecclSuccess) return result;
    router_.scatterBackward(rows(), shape_.capacity(), inputGradient);
    router_.gateBackward(weights.gate, sumGradients, gradients.gate, inputGradient);
    return moecclSuccess;
  }

 private:
  Router router_;
  std::int64_t slots_;  // per expert, of those that one rank takes
};

}  // namespace

std::unique_ptr<Schedule> s2Schedule(const LayerShape& shape, const Groups& groups) {
  return std::make_unique<S2>(shape, groups);
}

}  // namespace moeccl
