// S1 without capacity: the order of schedule_s1.cc, with rows instead of places. Every array is followed by
// [embedding], and an expert's rows are as many as its tokens:
//
//   input            [tokens]
//     | MP-Split
//   part             [padded tokens / N_MP]               the caller's
//     | gate, which tells experts how many rows they will get
//   rows             [E] runs of rows                     its tokens, selected by index
//     | dispatch, as RowExchange does it
//                    [E_local][N_ESP][N_EP] runs
//     | experts: partial sums, of the caller's hidden units
//                    [E_local][N_ESP][N_EP] runs
//     | combine: sums over the shards
//                    [E] runs
//     | weighted, added to
//   part             [padded tokens / N_MP]
//     | MP-AllGather
//   output           [tokens]
//
// and backward the same upwards, without the counts. Bytes that leave a rank, with x = B L M s, where experts have
// equal loads: (1 - 1 / N_EP) k x / N_MP and (N_ESP - 1) k x / N_MP in dispatch and in combine, and
// (1 - 1 / N_MP) x in the MP-AllGather. The residual branch computes while dispatch is under way.
#include <algorithm>
#include <optional>

#include "src/moe/parts.h"
#include "src/moe/residual.h"
#include "src/moe/router.h"
#include "src/moe/row_exchange.h"
#include "src/moe/schedule.h"

namespace moeccl {
namespace {

class DroplessS1 final : public Schedule {
 public:
  DroplessS1(const Groups& groups, Compute& compute)
      : Schedule(groups, compute),
        router_(compute.router(shape_.partTokens, shape_.training)),
        places_(compute),
        exchange_(groups_, compute, *this),
        parts_(groups_, compute, *this, "MP-AllGather", 0, true) {
    if (shape_.residual > 0) {
      residual_.emplace(groups_, compute, *this, false);
      beside_ = compute.sideStream(groups.world.comm);
    }
    if (!shape_.training) return;
    places_.keepForBackward(0);
    gateGradient_.emplace(groups_, compute, *this);
  }

  moecclResult_t forward(const LayerWeights& weights, std::int64_t step, const void* input,
                         void* output, BatchSums& sums, moecclStream_t stream) override {
    const void* const tokens = compute_.at(input, firstElement());
    router_->routeChunk(weights.gate, drawOf(step, groups_.world.rank), tokens, groups_.mp.rank, 0,
                        sums, stream);
    moecclResult_t result = exchange_.agree(router_->list(stream), stream);
    if (result != moecclSuccess) return result;
    places_.reserve(exchange_.room(), exchange_.own());
    router_->gather(own(), tokens, places_.rows(), stream);
    result = dispatch(stream, [&] {
      return residual_ ? residual_->forward(weights.residual, input, stream) : moecclSuccess;
    });
    if (result != moecclSuccess) return result;
    runExperts(weights, places_, exchange_.expertBegins(), stream);
    result = exchange_.combine(places_, stream);
    if (result != moecclSuccess) return result;
    places_.keepResults(stream);
    // `input` is not needed any more, so output may be the same.
    void* const part = parts_.own(output);
    compute_.zero(part, partElements(), stream);
    router_->add(own(), places_.rows(), part, stream);
    result = gatherParts(part, output, stream);
    return result == moecclSuccess ? gatherSums(groups_, *this, sums, stream) : result;
  }

  moecclResult_t backward(const LayerWeights& weights, const void* outputGradient,
                          const double* sumGradients, const LayerGradients& gradients,
                          void* inputGradient, moecclStream_t stream) override {
    gateGradient_->clear(stream);
    router_->addBackward(own(), places_.keptResults(), compute_.at(outputGradient, firstElement()),
                         places_.rows(), router_->weightGradients(), stream);
    moecclResult_t result = dispatch(stream, [&] {
      return residual_ ? residual_->backward(weights.residual, outputGradient, stream)
                       : moecclSuccess;
    });
    if (result != moecclSuccess) return result;
    runExpertsBackward(weights, gradients, places_, exchange_.expertBegins(), stream);
    result = exchange_.combine(places_, stream);
    if (result != moecclSuccess) return result;
    void* const part = parts_.own(inputGradient);
    compute_.zero(part, partElements(), stream);
    router_->gatherBackward(own(), places_.rows(), part, stream);
    router_->gateBackward(weights.gate, sumGradients, gateGradient_->partial(), part, stream);
    result = gatherParts(part, inputGradient, stream);
    if (result == moecclSuccess) result = gateGradient_->addTo(gradients.gate, stream);
    if (result != moecclSuccess) return result;
    return residual_ ? residual_->addGradients(gradients.residual, stream) : moecclSuccess;
  }

  void abandon(moecclStream_t stream) override {
    if (beside_) beside_->join(stream);
    if (residual_) residual_->abandon(stream);
  }

 private:
  // Of the caller's part.
  std::int64_t firstElement() const {
    return shape_.firstToken(groups_.mp.rank, 0) * shape_.embedding;
  }
  std::int64_t partElements() const {
    return std::min(shape_.tokens * shape_.embedding - firstElement(),
                    shape_.partTokens * shape_.embedding);
  }
  Router::Listed own() const { return {0, exchange_.own()}; }

  // places_ from own rows to given ones, and meanwhile something else.
  template <typename Meanwhile>
  moecclResult_t dispatch(moecclStream_t stream, Meanwhile meanwhile) {
    if (beside_) beside_->follow(stream);
    moecclResult_t result = exchange_.startDispatch(places_, beside_ ? beside_->get() : stream);
    if (result == moecclSuccess) result = meanwhile();
    if (result == moecclSuccess && beside_) result = noted("dispatch", beside_->join(stream));
    if (result == moecclSuccess) exchange_.finishDispatch(places_, stream);
    return result;
  }

  // What the residual branch has started advances.
  void progress() override {
    if (beside_) beside_->progress();
  }

  moecclResult_t gatherParts(void* part, void* batch, moecclStream_t stream) {
    if (residual_) residual_->addRows(0, partElements() / shape_.embedding, part, stream);
    const moecclResult_t result = parts_.gather(batch, stream);
    if (result == moecclSuccess) parts_.spread(batch, stream);
    return result;
  }

  std::unique_ptr<Router> router_;
  Places places_;
  RowExchange exchange_;
  PartGather parts_;
  std::optional<PartGateGradient> gateGradient_;
  std::optional<Residual> residual_;
  std::unique_ptr<SideStream> beside_;  // of dispatch, while the branch is computed
};

}  // namespace

std::unique_ptr<Schedule> droplessS1Schedule(const Groups& groups, Compute& compute) {
  return std::make_unique<DroplessS1>(groups, compute);
}

}  // namespace moeccl
