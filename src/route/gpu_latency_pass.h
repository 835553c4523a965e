// A pass in latency mode on GPUs: a call is enqueued whole, sizes are those of a bucket, and
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
#include <span>
#include <vector>

#include "algorithms/routes/route.h"
#include "kernels/latency_rows.h"
#include "src/exec/row_memory.h"
#include "src/route/route_pass.h"

namespace moeccl {

class GpuLatencyPass final : public RoutePass {
 public:
  GpuLatencyPass(Communicator& communicator, const RouteShape& shape, const RoutePrices& prices);

  const char* algorithmName() const override { return algorithm_.name.data(); }
  std::int64_t roomForRows() const override;
  bool isCounted() const override { return dispatched_; }
  std::int64_t tokens() const override { return rows_.tokens; }

  // Enqueued, like what follows.
  bool beginsOnGpu() const override { return true; }
  void begin(Communicator& communicator, const Routing& routing, void* stream) override;
  void dispatch(Communicator& communicator, const void* tokens, void* rows, void* stream) override;
  void combine(Communicator& communicator, const void* rows, void* output, bool forward,
               void* stream) override;

  const std::vector<std::int64_t>& expertBegins(Communicator& communicator) override;
  void rankCounts(Communicator& communicator, std::int64_t* counts) const override;
  const std::int64_t* deviceBegins() const override { return rows_.begins; }
  std::vector<std::int64_t> loads(Communicator& communicator) const override;
  void forgetLoads(Communicator& communicator) override;

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
  void launch(Communicator& communicator, const std::shared_ptr<const PlanName>& name,
              std::int64_t bucket, void* stream, const Body& body);
  std::byte* ownRegion() const {
    return rows_.regions + static_cast<std::size_t>(ownSlot_) * rows_.regionBytes;
  }
  void read(Communicator& communicator, const std::int64_t* from, std::span<std::int64_t> to) const;

  const routes::RouteAlgorithm& algorithm_;
  const routes::Way way_;
  const routes::Paths paths_;
  std::vector<int> firstSlot_;  // by number of paths_.relays
  std::int32_t ownSlot_ = 0;
  std::shared_ptr<RowMemory::Piece> tables_, room_;
  const std::shared_ptr<const PlanName> beginName_, dispatchName_, combineName_;
  std::vector<Part> toRelays_, fromRelays_, toRelaysBack_, fromRelaysBack_;
  LatencyRows rows_{};  // of the routing
  std::vector<std::int64_t> begins_;
  bool dispatched_ = false;
  void* stream_ = nullptr;  // of the last call
};

}  // namespace moeccl
