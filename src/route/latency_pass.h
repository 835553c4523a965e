// A pass in latency mode: all that a call needs is made once. A message says itself how many
// rows it has, and of which experts they are, so nobody is told anything before.
//
//   dispatch: source --its rows for a node, with experts and weights--> relay
//             relay  --those for a rank, with experts--> rank
//   combine:  the same way back. Sizes are known then, since each rank knows what it has sent.
//
// Begin waits for the calls of the pass before, whose memory it takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "algorithms/routes/plans.h"
#include "src/exec/content.h"
#include "src/route/route_pass.h"

namespace moeccl {

class LatencyPass final : public RoutePass, public std::enable_shared_from_this<LatencyPass> {
 public:
  LatencyPass(Communicator& communicator, const RouteShape& shape, const RoutePrices& prices);

  const char* algorithmName() const override { return algorithm_.name.data(); }
  // The most that a dispatch can bring.
  std::int64_t roomForRows() const override;
  bool isCounted() const override { return dispatched_; }
  std::int64_t tokens() const override { return home_.tokens(); }

  // Each waits first until the calls before, which may be on any stream, are over.
  void begin(Communicator& communicator, const Routing& routing, void* stream) override;
  const std::vector<std::int64_t>& expertBegins(Communicator& communicator) override;
  void rankCounts(Communicator& communicator, std::int64_t* counts) const override;
  std::vector<std::int64_t> loads(Communicator& communicator) const override;

  // Calls of one routing are on one stream, or wait for each other.
  void dispatch(Communicator& communicator, const void* tokens, void* rows, void* stream) override;
  void combine(Communicator& communicator, const void* rows, void* output, bool forward,
               void* stream) override;

 private:
  // latency_dispatch.cc
  class Dispatch final : public Content {
   public:
    explicit Dispatch(LatencyPass& pass) : pass_(pass) {}
    void reserve();
    void begin(const Plan& plan, const std::byte* input, std::byte* output) override;
    std::size_t mostBytes(const Op& op) const override;
    std::size_t write(const Op& op, std::byte* to) override;
    bool read(const Op& op, const std::byte* from, std::size_t bytes, Misfit* misfit) override;
    bool work(const Op& op, Misfit* misfit) override;

   private:
    const std::byte* rowOf(const routes::Relay::Destination::Origin& origin) const;
    void setRow(std::int32_t place, const std::byte* from);
    void fillRelay();

    LatencyPass& pass_;
    const std::byte* input_ = nullptr;  // as it travels
    std::byte* output_ = nullptr;
    std::vector<std::byte> quantised_;
    std::vector<const std::byte*> atRelay_;  // by source of the relay: its rows
    std::vector<const std::byte*> arrived_;  // by relay of what is here
    bool relayFilled_ = false;
  };
  // latency_combine.cc
  class Combine final : public Content {
   public:
    explicit Combine(LatencyPass& pass) : pass_(pass) {}
    void reserve();
    void begin(const Plan& plan, const std::byte* input, std::byte* output) override;
    std::size_t mostBytes(const Op& op) const override;
    std::size_t write(const Op& op, std::byte* to) override;
    bool read(const Op& op, const std::byte* from, std::size_t bytes, Misfit* misfit) override;
    bool work(const Op& op, Misfit* misfit) override;

   private:
    // Adds up what a node's experts have made of a row.
    void sum(const routes::Relay::Source& source, std::int32_t row, std::byte* to);
    void sumOwn();
    void finish(std::int32_t token);

    LatencyPass& pass_;
    const std::byte* input_ = nullptr;
    std::byte* output_ = nullptr;
    std::vector<const std::byte*> terms_;    // by destination of the relay: what it has sent
    std::vector<const std::byte*> back_;     // by node: its sums, row by row
    std::vector<std::size_t> next_;          // by node: the next of them
    std::vector<std::byte> sums_;            // of nodes for which this rank is the relay itself
    std::vector<const std::byte*> sources_;  // of the sum at hand
    std::vector<float> weights_;             // of those
  };

  static std::size_t bytesOf(std::int64_t rows, std::size_t rowBytes) {
    return static_cast<std::size_t>(rows) * rowBytes;
  }
  static void copyRow(std::byte*& to, const std::byte* from, std::size_t bytes) {
    std::memcpy(to, from, bytes);
    to += bytes;
  }
  // Reads a letter of a list from `sources` sources; nullptr where it is none.
  const std::byte* read(const std::byte* from, std::size_t bytes, int sources, bool weighted,
                        routes::IndexedRows* rows) const;
  std::size_t letterBytes(int sources, std::int64_t entries, std::int64_t rows,
                          bool weighted) const;
  // Where the rows begin in a letter whose list this writes.
  std::byte* writeList(const routes::RowList& list, bool weighted, std::byte* to) const;
  std::size_t dispatchArena() const;
  std::size_t combineArena() const;
  // The most entries that the tokens of one source make for a holder, and on a node.
  std::int64_t mostEntriesOf(int holder) const;
  std::int64_t mostEntriesOn(int node) const;
  std::size_t mostFromRelay(std::size_t sources, int holder) const;
  std::size_t mostToRelay(int node) const;
  void waitForCalls(Communicator& communicator) const;
  void launch(Communicator& communicator, const std::shared_ptr<CachedPlan>& plan, Content& content,
              const void* input, void* output, std::size_t rowBytes, void* stream);

  const Topology topology_;
  const routes::RouteAlgorithm& algorithm_;
  const routes::Way way_;
  const routes::Paths paths_;
  std::vector<int> expertsOn_;             // by node
  std::vector<std::size_t> sourceOfRank_;  // of relay_.sources, for the rank's own node
  std::vector<std::size_t> fromOfRank_;    // of here_.from
  std::vector<std::size_t> destinationOfRank_;
  routes::Home home_;
  routes::Relay relay_;
  routes::Here here_;
  Dispatch dispatch_;
  Combine combine_;
  std::shared_ptr<CachedPlan> dispatchPlan_, combinePlan_;
  bool dispatched_ = false;
  void* stream_ = nullptr;  // of the last call
};

}  // namespace moeccl
