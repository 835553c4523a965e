// Latency mode of a token route on GPUs: a call is enqueued whole, sizes are those of a bucket, and
// what depends on choices is found out by kernels (kernels/latency_rows.h). So a call waits for
// nothing, allocates nothing, and can be captured.
//
//   dispatch: source --its region--> relay --the regions it hands on--> each rank of the node
//   combine:  the same way back: rows for each choice to the relay, which adds them up
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "algorithms/routes/route.h"
#include "kernels/latency_rows.h"
#include "src/comm/communicator.h"
#include "src/exec/row_memory.h"
#include "src/route/route_shape.h"

namespace moeccl {

class GpuLatencyRoute {
 public:
  // Throws Error, like all functions. The communicator that they are given is always the same.
  GpuLatencyRoute(const RouteShape& shape, Communicator& communicator,
                  const routes::RouteAlgorithm& algorithm);

  const routes::RouteAlgorithm& algorithm() const { return algorithm_; }
  std::int64_t mostRows() const;
  bool isSet() const { return set_; }
  bool isDispatched() const { return dispatched_; }
  std::int64_t tokens() const { return rows_.tokens; }

  // Enqueued, like what follows; choices [tokens][k] of the GPU.
  void set(Communicator& communicator, std::int64_t tokens, const std::int32_t* chosen,
           const float* weights, void* stream);
  void dispatch(Communicator& communicator, const void* tokens, void* rows, void* stream);
  void combine(Communicator& communicator, const void* rows, void* output, void* stream);

  // Waits for the last call: [localExperts + 1] and [localExperts][ranks].
  std::vector<std::int64_t> expertBegins(Communicator& communicator) const;
  std::vector<std::int64_t> rankCounts(Communicator& communicator) const;
  // The first in the GPU's memory.
  const std::int64_t* deviceBegins() const { return rows_.begins; }
  // [experts] choices of this rank's tokens, and then its rows, since forgetLoads().
  std::vector<std::int64_t> loads(Communicator& communicator) const;
  void forgetLoads(Communicator& communicator);

 private:
  // One message: of the bucket's units from unit `first` on.
  struct Part {
    bool isSend;
    int peer;
    std::byte* from;  // the memory that units are in
    std::int64_t first, count;
    bool regions;  // units are regions, else rows of a combine for each token of the bucket
  };

  void makeRoom(Communicator& communicator, const std::array<std::vector<std::int32_t>, 6>& lists,
                const std::vector<std::int64_t>& termFirst);
  void planExchanges(const Topology& topology, const std::vector<std::int32_t>& slots,
                     const std::vector<std::int64_t>& termFirst);
  std::size_t regionBytes(std::int64_t bucket) const;
  std::size_t headerBytes(std::int64_t bucket) const;
  void exchange(NcclLanes& lanes, const std::vector<Part>& parts, void* stream) const;
  template <typename Body>
  void launch(Communicator& communicator, const PlanName& name, bool meets, void* stream,
              const Body& body);
  std::byte* ownRegion() const {
    return rows_.regions + static_cast<std::size_t>(ownSlot_) * rows_.regionBytes;
  }
  std::vector<std::int64_t> read(Communicator& communicator, const std::int64_t* from,
                                 std::size_t count) const;

  const RouteShape shape_;
  const routes::RouteAlgorithm& algorithm_;
  const routes::Way way_;
  const int rank_;
  const routes::Paths paths_;
  std::vector<int> firstSlot_;  // by number of paths_.relays
  std::int32_t ownSlot_ = 0;
  std::shared_ptr<RowMemory::Piece> tables_, room_;
  const std::shared_ptr<const PlanName> setName_, dispatchName_, combineName_;
  std::vector<Part> toRelays_, fromRelays_, toRelaysBack_, fromRelaysBack_;
  LatencyRows rows_{};  // of the last Set
  bool set_ = false, dispatched_ = false;
  void* stream_ = nullptr;  // of the last call
};

}  // namespace moeccl
