// A token route: what ranks tell each other about a routing, and the calls that move its rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "algorithms/routes/plans.h"
#include "moeccl/route.h"
#include "src/comm/communicator.h"
#include "src/cost/route_price.h"
#include "src/route/gpu_latency_route.h"
#include "src/route/latency_route.h"
#include "src/route/route_shape.h"

namespace moeccl {

// The communicator that functions are given is always the same. They throw Error.
class TokenRoute {
 public:
  TokenRoute(Communicator& communicator, const RouteShape& shape, RoutePrices prices);

  const RouteShape& shape() const { return shape_; }
  const RoutePrices& prices() const { return prices_; }
  int firstExpert() const;
  int localExperts() const;

  // `counts`: how the ranks exchange countBytes() each.
  std::size_t countBytes() const;
  void set(Communicator& communicator, const AlgorithmChoice& counts, std::int64_t tokens,
           const std::int32_t* chosen, const float* weights);
  // Whether it is set by setOnGpu() instead, in the order of a stream.
  bool isSetOnGpu() const { return onGpu_ != nullptr; }
  void setOnGpu(Communicator& communicator, std::int64_t tokens, const std::int32_t* chosen,
                const float* weights, void* stream) {
    onGpu_->set(communicator, tokens, chosen, weights, stream);
  }
  bool isSet() const {
    return onGpu_ ? onGpu_->isSet() : latency_ ? latency_->isSet() : state_ != nullptr;
  }
  // Whether it is known, or will be when calls are over, how many rows come.
  bool isCounted() const {
    return onGpu_ ? onGpu_->isDispatched() : latency_ ? latency_->isDispatched() : isSet();
  }
  // The functions below: after set().
  // Rows that buffers must have room for.
  std::int64_t roomForRows() const {
    return onGpu_ ? onGpu_->mostRows() : latency_ ? latency_->mostRows() : rows();
  }
  // How many rows come for each of the rank's experts, from where each begins. Waits, in latency
  // mode, for what is under way.
  const std::vector<std::int64_t>& expertBegins(Communicator& communicator);
  // The first of these in the memory of a GPU, where a dispatch sets it; else nullptr.
  const std::int64_t* deviceBegins() const { return onGpu_ ? onGpu_->deviceBegins() : nullptr; }
  // Sets counts [localExperts][ranks] of the same rows.
  void rankCounts(Communicator& communicator, std::int64_t* counts);
  std::int64_t tokens() const;
  const routes::RouteAlgorithm& algorithm() const;

  void dispatch(Communicator& communicator, const void* tokens, void* rows, void* stream);
  void combine(Communicator& communicator, const void* rows, void* output, bool weighted,
               void* stream);
  void combineBackward(Communicator& communicator, const void* outputGradients, const void* rows,
                       void* rowGradients, float* weightGradients, void* stream);

  // Of this rank: its choices of each expert, and behind them the rows that came to it; since
  // forgetLoads().
  std::vector<std::int64_t> loads(Communicator& communicator) const;
  void forgetLoads(Communicator& communicator);

 private:
  struct Candidate {
    const routes::RouteAlgorithm* algorithm;
    routes::Way way;
    routes::Paths paths;
    bool relays;  // whether rows go by others: the same on all ranks
  };
  struct State;  // of a routing
  struct Plans;

  const Candidate& choose(Communicator& communicator, const AlgorithmChoice& counts,
                          const routes::Home& home, std::vector<std::int32_t>& entriesFrom,
                          int* chunks);
  const routes::RouteAlgorithm& algorithmOfLatency() const;
  const Candidate& cheapest(std::span<const RouteCounts> counts) const;
  void countChoices(std::int64_t tokens, const std::int32_t* chosen);
  std::vector<std::byte> packed(const routes::RowList& list) const;
  std::vector<std::byte> roomFor(int from, int chunks, int sources,
                                 const std::vector<std::int32_t>& entriesFrom) const;
  routes::RowList read(const RankBytes& part, int chunks, int sources,
                       const std::vector<std::int32_t>& entriesFrom) const;
  std::int64_t rows() const;
  const routes::Here& arriving(Communicator& communicator) const;
  std::vector<routes::RowList> tellRelays(Communicator& communicator, const State& state,
                                          int chunks,
                                          const std::vector<std::int32_t>& entriesFrom) const;
  void countFromRelays(Communicator& communicator, const State& state,
                       std::vector<std::int32_t>& entriesFrom) const;
  std::vector<routes::RowList> hearRelays(Communicator& communicator, const State& state,
                                          int chunks,
                                          const std::vector<std::int32_t>& entriesFrom) const;
  void moveRows(Communicator& communicator, const void* tokens, void* rows, std::size_t rowBytes,
                const char* what, void* stream);

  const RouteShape shape_;
  const int rank_;
  const Topology topology_;
  const RoutePrices prices_;
  std::vector<Candidate> candidates_;
  std::vector<std::int64_t> choicesOfExperts_;
  std::int64_t rowsSoFar_ = 0;
  std::vector<std::int64_t> begins_;        // of a GPU
  std::shared_ptr<GpuLatencyRoute> onGpu_;  // instead of what is below
  std::shared_ptr<LatencyRoute> latency_;   // the same
  std::shared_ptr<State> state_;
  std::shared_ptr<Plans> plans_;
};

}  // namespace moeccl
