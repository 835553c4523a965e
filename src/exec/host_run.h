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
#include "src/exec/trace.h"
#include "src/exec/transport.h"

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

// Why a run failed.
struct RunFailure {
  TransferStatus status = TransferStatus::ok;  // ok with a peer: a message of another size came
  int op = -1;
  int peer = -1;  // rank of the plan
  std::size_t expected = 0, arrived = 0;
  std::string details;  // the transport's
};

class HostRun {
 public:
  explicit HostRun(std::shared_ptr<const PreparedPlan> plan);
  HostRun(const HostRun&) = delete;
  HostRun& operator=(const HostRun&) = delete;

  // The run must be idle. Operands' buffers belong to the run until it is idle again.
  void start(const Route& route, const Operands& operands);
  // Nothing is in flight and nothing will start any more.
  bool idle() const { return unfinished_ == 0 || (failed_ && inFlight_ == 0); }
  bool failed() const { return failed_; }
  const RunFailure& failure() const { return failure_; }
  // Ops that have not completed; it shrinks whenever the run advances.
  int unfinished() const { return unfinished_; }
  // Gives up: nothing new starts, and what is in flight is cancelled. Once the run is idle, the
  // transport has done with the operands.
  void cancel();
  // Takes the memory of a run that is idle, and needs none any more.
  void takeArena(HostRun& from) {
    arena_ = std::move(from.arena_);
    arenaBytes_ = std::exchange(from.arenaBytes_, 0);
  }
  // What the plan's scratch blocks hold, when the run is over.
  const std::byte* scratch() const { return arena_.get(); }
  // Ranks of the plan that unfinished receives wait for.
  std::vector<int> awaitedPeers() const;

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

  void reduce(const Op& op);

  void execute(int op);
  void record(int op) const;
  void completed(int op);
  void drain();
  void fail(const RunFailure& failure);

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
  int unfinished_ = 0, inFlight_ = 0;
  bool failed_ = false;
  RunFailure failure_;
};

}  // namespace moeccl
