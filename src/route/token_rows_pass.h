// A pass with one row of a token for each rank: a throughput pass whose tokens choose ranks' places
// in the grid instead of experts. What they chose there goes behind them as rows of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/route/throughput_pass.h"

namespace moeccl {

class TokenRowsPass final : public ThroughputPass {
 public:
  TokenRowsPass(Communicator& communicator, const RouteShape& shape, const RoutePrices& prices);

  void begin(Communicator& communicator, const Routing& routing, void* stream) override;
  std::int64_t dropped() const override { return droppedChoices_; }
  const float* rowWeights() const override;
  const std::int32_t* rowExperts() const override { return choices_->experts.data(); }
  void returnWeights(Communicator& communicator, const float* rowWeightGradients,
                     float* weightGradients, void* stream) override;
  std::vector<std::int64_t> loads(Communicator&) const override { return expertLoads_.counts(); }
  void forgetLoads(Communicator&) override { expertLoads_.forget(); }

 private:
  // The choices of the rows that have come, [rows][choices].
  struct RowChoices {
    std::vector<std::int32_t> experts;
    std::vector<float> weights;
  };
  void tellChoices(Communicator& communicator, const Routing& routing);

  const RouteShape byExpert_;  // the route's; shape_ has positions in the place of experts
  ExpertLoads expertLoads_;
  std::int64_t droppedChoices_ = 0;
  std::vector<std::int32_t> positions_;
  std::shared_ptr<const RowChoices> choices_;
};

}  // namespace moeccl
