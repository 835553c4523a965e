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

#include "src/moe/router.h"
#include "src/moe/schedule.h"

namespace moeccl {
namespace {

class S2 final : public Schedule {
 public:
  S2(const Groups& groups, Compute& compute)
      : Schedule(groups, compute),
        router_(compute.router(shape_.paddedTokens(), shape_.training)),
        places_(compute, elementCount({shape_.experts, std::max(shape_.grid.nMp, shape_.grid.nEsp),
                                       shape_.capacity() / shape_.grid.nMp, shape_.embedding})),
        slots_(shape_.capacity() / shape_.grid.nMp) {
    compute.reserveRows(shape_.localExperts * groups.world.ranks * slots_);
    if (shape_.training)
      places_.keepForBackward(elementCount({shape_.experts, shape_.capacity(), shape_.embedding}));
  }

  moecclResult_t forward(const LayerWeights& weights, std::int64_t step, const void* input,
                         void* output, BatchSums& sums, moecclStream_t stream) override {
    router_->routeBatch(weights.gate, drawOf(step, groups_.world.rank), input, sums, stream);
    router_->scatter(input, shape_.capacity(), places_.rows(), stream);
    moecclResult_t result = splitDispatch(places_, slots_, stream);
    if (result != moecclSuccess) return result;
    runExperts(weights, places_, groups_.world.ranks * slots_, stream);
    result = combineAllGather(places_, slots_, stream);
    if (result != moecclSuccess) return result;
    places_.keepResults(stream);
    router_->combine(places_.rows(), shape_.capacity(), output, stream);
    return moecclSuccess;
  }

  moecclResult_t backward(const LayerWeights& weights, const void* outputGradient,
                          const double* sumGradients, const LayerGradients& gradients,
                          void* inputGradient, moecclStream_t stream) override {
    router_->combineBackward(places_.keptResults(), outputGradient, shape_.capacity(),
                             places_.rows(), stream);
    moecclResult_t result = splitDispatch(places_, slots_, stream);
    if (result != moecclSuccess) return result;
    runExpertsBackward(weights, gradients, places_, groups_.world.ranks * slots_, stream);
    result = combineAllGather(places_, slots_, stream);
    if (result != moecclSuccess) return result;
    router_->scatterBackward(places_.rows(), shape_.capacity(), inputGradient, stream);
    router_->gateBackward(weights.gate, sumGradients, gradients.gate, inputGradient, stream);
    return moecclSuccess;
  }

 private:
  std::unique_ptr<Router> router_;
  Places places_;
  std::int64_t slots_;  // per expert, of those that one rank takes
};

}  // namespace

std::unique_ptr<Schedule> s2Schedule(const Groups& groups, Compute& compute) {
  return std::make_unique<S2>(groups, compute);
}

}  // namespace moeccl
