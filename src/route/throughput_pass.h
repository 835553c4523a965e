// A pass in throughput mode: ranks tell each other about a routing, and calls move exactly
// the rows that there are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "src/route/route_choice.h"
#include "src/route/route_pass.h"

namespace moeccl {

class ThroughputPass : public RoutePass {
 public:
  ThroughputPass(Communicator& communicator, const RouteShape& shape, const RoutePrices& prices);

  bool tellsOthers() const override { return true; }
  void begin(Communicator& communicator, const Routing& routing, void* stream) override;
  bool isCounted() const override { return true; }
  std::int64_t roomForRows() const override;
  const std::vector<std::int64_t>& expertBegins(Communicator& communicator) override;
  void rankCounts(Communicator& communicator, std::int64_t* counts) const override;
  const float* rowWeights() const override;
  std::int64_t tokens() const override;
  std::int64_t dropped() const override { return dropped_; }
  const char* algorithmName() const override;

  void dispatch(Communicator& communicator, const void* tokens, void* rows, void* stream) override;
  void combine(Communicator& communicator, const void* rows, void* output, bool forward,
               void* stream) override;
  void combineBackward(Communicator& communicator, const void* outputGradients, const void* rows,
                       void* rowGradients, void* weightGradients, void* stream) override;
  void returnWeights(Communicator& communicator, const float* rowWeightGradients,
                     float* weightGradients, void* stream) override;

 protected:
  // The choices that begin() was given, [tokens][choices], -1 where config.maxRows left no room.
  // Valid until the next begin().
  const std::vector<std::int32_t>& admitted() const { return admitted_; }
  // Rows of any size, one for each token, to where the tokens' go.
  void moveRows(Communicator& communicator, const void* tokens, void* rows, std::size_t rowBytes,
                const std::shared_ptr<const PlanName>& inside, void* stream);
  // Rows of float32 added up by token, which `prepare` makes, all of whose memory it owns.
  void addUp(Communicator& communicator, const float* rows, float* tokens, std::int64_t elements,
             std::function<void()> prepare, void* stream);

 private:
  struct State;  // of a routing
  struct Plans;

  // How a routing's rows go, which all ranks choose alike, and how many entries of rows each rank
  // sends to this one.
  struct Chosen {
    const RouteCandidate& candidate;
    int chunks;
    std::vector<std::int32_t> entriesFrom;
  };
  Chosen choose(Communicator& communicator, const Routing& routing, const routes::Home& home) const;
  // As moveRows, of rows of config.hidden elements, which travel as the route says.
  void sendRows(Communicator& communicator, const void* tokens, void* rows,
                moecclDataType_t datatype, const std::shared_ptr<const PlanName>& inside,
                void* stream);
  RowsCall dispatching(const void* tokens, void* rows, std::size_t rowBytes,
                       const std::shared_ptr<const PlanName>& inside);
  RowsCall combining(const void* rows, void* output, std::size_t rowBytes,
                     moecclDataType_t datatype);
  // A call that brings a number for each row back to the row's choice.
  RowsCall returning(const float* ofRows, void* ofChoices);

  const Topology topology_;
  const std::shared_ptr<const PlanName> beginName_, roomName_;
  const std::vector<RouteCandidate> candidates_;
  std::int64_t dropped_ = 0;
  std::vector<std::int32_t> admitted_;
  std::shared_ptr<State> state_;
  std::shared_ptr<Plans> plans_;
};

}  // namespace moeccl
