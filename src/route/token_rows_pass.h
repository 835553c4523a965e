// A pass with one row of a token for each rank: a throughput pass whose tokens choose ranks' places
// in the grid instead of experts. What they chose there goes behind them as rows of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/route/throughput_pass.h"

namespace moeccl {

class TokenRowsPass final : public RoutePass {
 public:
  TokenRowsPass(Communicator& communicator, const RouteShape& shape, const RoutePrices& prices);

  bool tellsOthers() const override { return rows_.tellsOthers(); }
  void begin(Communicator& communicator, const Routing& routing, void* stream) override;
  bool isCounted() const override { return true; }
  std::int64_t roomForRows() const override { return rows_.roomForRows(); }
  const std::vector<std::int64_t>& expertBegins(Communicator& communicator) override {
    return rows_.expertBegins(communicator);
  }
  std::int64_t dropped() const override { return dropped_; }
  void rankCounts(Communicator& communicator, std::int64_t* counts) const override {
    rows_.rankCounts(communicator, counts);
  }
  const float* rowWeights() const override;
  const std::int32_t* rowExperts() const override { return choices_->experts.data(); }
  std::int64_t tokens() const override { return rows_.tokens(); }
  const char* algorithmName() const override { return rows_.algorithmName(); }

  void dispatch(Communicator& communicator, const void* tokens, void* rows, void* stream) override {
    rows_.dispatch(communicator, tokens, rows, stream);
  }
  void combine(Communicator& communicator, const void* rows, void* output, bool forward,
               void* stream) override {
    rows_.combine(communicator, rows, output, forward, stream);
  }
  void combineBackward(Communicator& communicator, const void* outputGradients, const void* rows,
                       void* rowGradients, void* weightGradients, void* stream) override {
    rows_.combineBackward(communicator, outputGradients, rows, rowGradients, weightGradients,
                          stream);
  }
  void returnWeights(Communicator& communicator, const float* rowWeightGradients,
                     float* weightGradients, void* stream) override;

 private:
  // The choices of the rows that have come, [rows][choices].
  struct RowChoices {
    std::vector<std::int32_t> experts;
    std::vector<float> weights;
  };
  void tellChoices(Communicator& communicator, const Routing& routing);

  ThroughputPass rows_;
  std::int64_t dropped_ = 0;
  std::vector<std::int32_t> positions_;
  std::shared_ptr<const RowChoices> choices_;
};

}  // namespace moeccl
