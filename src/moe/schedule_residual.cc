// The residual branch beside a schedule whose exchanges have no room for it: baseline and S2, at whose end all
// ranks of an MP group have all of its tokens.
//
//   input            [tokens]
//     | MP-Split
//   part             [padded tokens / N_MP]               the caller's
//     | the branch
//     | MP-AllGather, under way while the schedule does the rest
//                    [tokens]
//     | added to the schedule's output
//
// So every token is computed once, not N_MP times: (1 - 1 / N_MP) x more bytes leave a rank each way, with
// x = B L M s, for (1 - 1 / N_MP) of 2 B L M R multiplications.
#include "src/moe/residual.h"
#include "src/moe/schedule.h"

namespace moeccl {
namespace {

class WithResidual final : public Schedule {
 public:
  WithResidual(std::unique_ptr<Schedule> schedule, const Groups& groups, Compute& compute)
      : Schedule(groups, compute),
        schedule_(std::move(schedule)),
        residual_(groups_, compute, *this, true) {}

  // The branch comes first, and is noted first.
  const char* lastPhase() const override {
    const char* const last = schedule_->lastPhase();
    return *last == '\0' ? Schedule::lastPhase() : last;
  }
  void beginPass() override {
    Schedule::beginPass();
    schedule_->beginPass();
  }

  moecclResult_t forward(const LayerWeights& weights, std::int64_t step, const void* input,
                         void* output, BatchSums& sums, moecclStream_t stream) override {
    // The branch first: output may be input.
    moecclResult_t result = residual_.forward(weights.residual, input, stream);
    if (result != moecclSuccess) return result;
    result = rest(schedule_->forward(weights, step, input, output, sums, stream));
    return result == moecclSuccess ? residual_.addTo(output, stream) : result;
  }

  moecclResult_t backward(const LayerWeights& weights, const void* outputGradient,
                          const double* sumGradients, const LayerGradients& gradients,
                          void* inputGradient, moecclStream_t stream) override {
    moecclResult_t result = residual_.backward(weights.residual, outputGradient, stream);
    if (result != moecclSuccess) return result;
    result = rest(schedule_->backward(weights, outputGradient, sumGradients, gradients,
                                      inputGradient, stream));
    if (result == moecclSuccess) result = residual_.addTo(inputGradient, stream);
    return result == moecclSuccess ? residual_.addGradients(gradients.residual, stream) : result;
  }

  void setFirstBatch(std::int64_t first) override { schedule_->setFirstBatch(first); }

  void abandon(moecclStream_t stream) override {
    schedule_->abandon(stream);
    residual_.abandon(stream);
  }

 private:
  // The schedule's result.
  moecclResult_t rest(moecclResult_t result) {
    return result == moecclSuccess ? result : noted(schedule_->failedPhase(), result);
  }

  std::unique_ptr<Schedule> schedule_;
  Residual residual_;
};

}  // namespace

std::unique_ptr<Schedule> withResidual(std::unique_ptr<Schedule> schedule, const Groups& groups,
                                       Compute& compute) {
  return std::make_unique<WithResidual>(std::move(schedule), groups, compute);
}

}  // namespace moeccl
