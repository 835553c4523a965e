// Messages of one call in flight over a transport: those of a plan (host_run.h), or sends and
// receives of the caller's own (message_run.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <vector>

#include "src/exec/transport.h"

namespace moeccl {

// Why a run failed.
struct RunFailure {
  TransferStatus status = TransferStatus::ok;  // ok with a peer: a message of another size came
  int op = -1;
  int peer = -1;  // rank of the communicator
  std::size_t expected = 0, arrived = 0;
  std::string details;  // the transport's
};

class Run {
 public:
  virtual ~Run() = default;
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  // Nothing is in flight and nothing will start any more.
  bool idle() const { return unfinished_ == 0 || (failed_ && inFlight_ == 0); }
  bool failed() const { return failed_; }
  const RunFailure& failure() const { return failure_; }
  // Parts that have not completed; it shrinks whenever the run advances.
  int unfinished() const { return unfinished_; }
  // Gives up: nothing new starts, and what is in flight is cancelled. Once the run is idle, the
  // transport has done with the caller's buffers.
  virtual void cancel() = 0;
  // Ranks of the communicator that unfinished receives wait for, ascending.
  std::vector<int> awaitedPeers() const { return peersOf(false); }
  // Ranks that have not taken what this one sends, ascending.
  std::vector<int> untakenPeers() const { return peersOf(true); }
  // Both.
  std::vector<int> neededPeers() const {
    const std::vector<int> awaited = awaitedPeers(), untaken = untakenPeers();
    std::vector<int> all;
    std::ranges::set_union(awaited, untaken, std::back_inserter(all));
    return all;
  }

 protected:
  Run() = default;
  // Those of unfinished sends, or of unfinished receives; each once, ascending.
  virtual std::vector<int> peersOf(bool sends) const = 0;

  void begin(int parts) {
    unfinished_ = parts;
    inFlight_ = 0;
    failed_ = false;
    failure_ = {};
  }
  void fail(const RunFailure& failure) {
    failure_ = failure;
    cancel();
  }

  int unfinished_ = 0, inFlight_ = 0;
  bool failed_ = false;
  RunFailure failure_;
};

// What has gone wrong with a transfer of `expected` bytes that has ended.
inline RunFailure failureOf(const Transport& transport, TransferStatus status, int op, int peer,
                            std::size_t expected, std::size_t arrived) {
  const bool explained = status == TransferStatus::unreachable || status == TransferStatus::failed;
  return {status, op, peer, expected, arrived, explained ? transport.lastError() : std::string()};
}

}  // namespace moeccl
