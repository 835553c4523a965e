// One pass of a route: a routing, and the calls that move its rows. When it has ended its memory
// serves another one. There are five: in throughput mode (throughput_pass.h), the same with a row
// for each token (token_rows_pass.h), under a schedule (schedule_pass.h), and in latency mode on
// hosts (latency_pass.h) and on GPUs (gpu_latency_pass.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "src/base/error.h"
#include "src/comm/communicator.h"
#include "src/model/route_price.h"
#include "src/route/expert_loads.h"
#include "src/route/route_shape.h"

namespace moeccl {

class RouteSchedules;

struct Routing {
  std::int64_t tokens;
  const std::int32_t* experts;  // [tokens][choices]; -1: none
  const void* weights;          // of these, float64 where the route is, or nullptr
  // Where ranks tell each other (RoutePass::tellsOthers): what is wrong with this rank's part.
  std::optional<Error> wrong = {};

  const float* floats() const { return static_cast<const float*>(weights); }
};

// The communicator that functions are given is always the same. They throw Error.
class RoutePass {
 public:
  // schedules: of a route that has such.
  static std::shared_ptr<RoutePass> make(Communicator& communicator, const RouteShape& shape,
                                         const RoutePrices& prices, RouteSchedules* schedules);
  virtual ~RoutePass() = default;
  RoutePass(const RoutePass&) = delete;
  RoutePass& operator=(const RoutePass&) = delete;

  // Whether begin() is given choices and weights that are the GPU's, in the order of the stream;
  // else they are the host's.
  virtual bool beginsOnGpu() const { return false; }
  // Whether ranks tell each other in begin() what they bring.
  virtual bool tellsOthers() const { return false; }
  virtual void begin(Communicator& communicator, const Routing& routing, void* stream) = 0;
  // The functions below: after begin().
  // Whether it is known, or will be when calls are over, how many rows come.
  virtual bool isCounted() const = 0;
  // Rows that buffers must have room for.
  virtual std::int64_t roomForRows() const = 0;
  // How many rows come for each of the rank's experts, from where each begins. Waits, in latency
  // mode, for what is under way.
  virtual const std::vector<std::int64_t>& expertBegins(Communicator& communicator) = 0;
  // The first of these in the memory of a GPU, where a dispatch sets it; else nullptr.
  virtual const std::int64_t* deviceBegins() const { return nullptr; }
  // Choices of this rank's tokens that got no place.
  virtual std::int64_t dropped() const { return 0; }
  // Sets counts [localExperts][ranks] of the same rows.
  virtual void rankCounts(Communicator& communicator, std::int64_t* counts) const = 0;
  // By row, of rows by token [choices] each; nullptr where weights do not travel, or are not the
  // host's.
  virtual const float* rowWeights() const { return nullptr; }
  // The numbers of this rank's experts, or -1, [choices] for each row by token. nullptr where rows
  // are not by token.
  virtual const std::int32_t* rowExperts() const { return nullptr; }
  virtual std::int64_t tokens() const = 0;
  // The name of what brings the rows, a literal.
  virtual const char* algorithmName() const = 0;

  virtual void dispatch(Communicator& communicator, const void* tokens, void* rows,
                        void* stream) = 0;
  // forward: with weights, where the library weighs; else it is a gradient.
  virtual void combine(Communicator& communicator, const void* rows, void* output, bool forward,
                       void* stream) = 0;
  // In throughput mode; the second where weights travel with rows.
  virtual void combineBackward(Communicator& communicator, const void* outputGradients,
                               const void* rows, void* rowGradients, void* weightGradients,
                               void* stream);
  virtual void returnWeights(Communicator& communicator, const float* rowWeightGradients,
                             float* weightGradients, void* stream);

  // This rank's loads since forgetLoads(): its choices of each expert, and behind them the rows
  // that came to it.
  virtual std::vector<std::int64_t> loads(Communicator&) const { return loads_.counts(); }
  virtual void forgetLoads(Communicator&) { loads_.forget(); }

 protected:
  RoutePass(const RouteShape& shape, int rank, const RoutePrices& prices)
      : shape_(shape), rank_(rank), prices_(prices), loads_(shape.experts.count) {}

  const RouteShape shape_;
  const int rank_;
  const RoutePrices prices_;
  ExpertLoads loads_;  // where begin() is given choices of the host's
};

}  // namespace moeccl
