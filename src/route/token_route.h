// A token route, as the public functions use it. There are three: in throughput mode
// (throughput_route.h), and in latency mode on hosts (latency_route.h) and on GPUs
// (gpu_latency_route.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/comm/communicator.h"
#include "src/cost/route_price.h"
#include "src/route/route_shape.h"

namespace moeccl {

// The communicator that functions are given is always the same. They throw Error.
class TokenRoute {
 public:
  static std::shared_ptr<TokenRoute> make(Communicator& communicator, const RouteShape& shape,
                                          const RoutePrices& prices);
  virtual ~TokenRoute() = default;
  TokenRoute(const TokenRoute&) = delete;
  TokenRoute& operator=(const TokenRoute&) = delete;

  const RouteShape& shape() const { return shape_; }
  const RoutePrices& prices() const { return prices_; }
  int firstExpert() const { return shape_.experts.begin(position()); }
  int localExperts() const { return shape_.experts.begin(position() + 1) - firstExpert(); }

  // Whether set() is given choices and weights that are the GPU's, in the order of the stream; else
  // they are the host's.
  virtual bool isSetOnGpu() const { return false; }
  // What each rank tells each other in set(); 0: nothing. `counts` is how.
  virtual std::size_t countBytes() const { return 0; }
  virtual void set(Communicator& communicator, const AlgorithmChoice& counts, std::int64_t tokens,
                   const std::int32_t* chosen, const float* weights, void* stream) = 0;
  virtual bool isSet() const = 0;
  // Whether it is known, or will be when calls are over, how many rows come.
  virtual bool isCounted() const = 0;
  // The functions below: after set().
  // Rows that buffers must have room for.
  virtual std::int64_t roomForRows() const = 0;
  // How many rows come for each of the rank's experts, from where each begins. Waits, in latency
  // mode, for what is under way.
  virtual const std::vector<std::int64_t>& expertBegins(Communicator& communicator) = 0;
  // The first of these in the memory of a GPU, where a dispatch sets it; else nullptr.
  virtual const std::int64_t* deviceBegins() const { return nullptr; }
  // Sets counts [localExperts][ranks] of the same rows.
  virtual void rankCounts(Communicator& communicator, std::int64_t* counts) const = 0;
  virtual std::int64_t tokens() const = 0;
  virtual const routes::RouteAlgorithm& algorithm() const = 0;

  virtual void dispatch(Communicator& communicator, const void* tokens, void* rows,
                        void* stream) = 0;
  // forward: with the library's weights, where it has them; else it is a gradient.
  virtual void combine(Communicator& communicator, const void* rows, void* output, bool forward,
                       void* stream) = 0;
  // In throughput mode.
  virtual void combineBackward(Communicator& communicator, const void* outputGradients,
                               const void* rows, void* rowGradients, float* weightGradients,
                               void* stream);

  // Of this rank: its choices of each expert, and behind them the rows that came to it; since
  // forgetLoads().
  virtual std::vector<std::int64_t> loads(Communicator& communicator) const = 0;
  virtual void forgetLoads(Communicator& communicator) = 0;

 protected:
  TokenRoute(const RouteShape& shape, int rank, const RoutePrices& prices)
      : shape_(shape), rank_(rank), prices_(prices) {}
  int position() const { return shape_.experts.grid.positionOf(rank_); }

  const RouteShape shape_;
  const int rank_;
  const RoutePrices prices_;
};

}  // namespace moeccl
