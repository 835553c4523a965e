// One run of a plan on host memory, over a transport. It is driven by completions alone: start()
// posts the receives and whatever waits for nothing; every completion releases what waited for it.
// Whoever calls Transport::progress() therefore advances all runs at once.
//
// A run is reused for later runs of its plan. Once its memory has grown to a size, running at that
// size allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/exec/placement.h"
#include "src/exec/prepared_plan.h"
#include "src/exec/run.h"
#include "src/exec/trace.h"

namespace moeccl {

// Where messages go: the plan's ranks in the transport's numbering, and the common part of their
// tags.
struct Route {
  Transport* transport = nullptr;
  std::span<const int> transportRank;  // by rank of the plan; must outlive the run
  TagFields tag;                       // comm, call, digest, part, source
  Trace* trace = nullptr;              // none: nothing is recorded
  std::uint32_t traceLabel = 0;
};

class HostRun final : public Run {
 public:
  explicit HostRun(std::shared_ptr<const PreparedPlan> plan);

  // The run must be idle. Operands' buffers belong to the run until it is idle again.
  void start(const Route& route, const Operands& operands);
  void cancel() override;
  // Takes the memory of a run that is idle, and needs none any more.
  void takeArena(HostRun& from) {
    arena_ = std::move(from.arena_);
    arenaBytes_ = std::exchange(from.arenaBytes_, 0);
  }
  // Has so much memory from now on.
  void reserve(std::size_t bytes);
  // What the plan's scratch blocks hold, when the run is over.
  const std::byte* scratch() const { return arena_.get(); }

  // A message that has come for the same call of the same communicator, but with another digest.
  bool findStray(Tag* found) const;
  // The number of the call that it is, or was last, started for.
  std::uint32_t call() const { return route_.tag.call; }

  const PreparedPlan& prepared() const { return *plan_; }

 private:
  struct OpTransfer : Transfer {
    HostRun* run = nullptr;
    std::int32_t op = 0;
    bool active = false;
    MessagePlace place;
  };

  static void transferDone(Transfer* self, TransferStatus status, std::size_t bytes);
  std::vector<int> peersOf(bool sends) const override;

  void reduce(const Op& op);
  void layOut();
  bool arrived(OpTransfer& transfer, Content::Misfit* misfit);
  bool work(int op);

  void execute(int op);
  void record(int op) const;
  void completed(int op);
  void drain();

  std::shared_ptr<const PreparedPlan> plan_;
  Route route_;
  Placement placement_;
  std::vector<OpTransfer> transfers_;            // by op; used by sends and receives
  std::vector<Trace::Clock::time_point> began_;  // by op; only while there is a trace
  std::vector<std::int32_t> waitsFor_;
  std::vector<std::int32_t> ready_;        // ops to execute; a queue from readyHead_
  std::vector<const std::byte*> sources_;  // of the reduction at hand
  std::vector<float> weights_;             // of those, where there are any
  std::size_t readyHead_ = 0;
  bool draining_ = false;
  std::unique_ptr<std::byte[]> arena_;  // scratch, then staging
  std::size_t arenaBytes_ = 0;
};

}  // namespace moeccl
