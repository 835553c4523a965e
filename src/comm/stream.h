// A queue of collectives on host memory. Work on one stream runs in order; it advances whenever
// anybody polls the domain.
#pragma once

#include <chrono>
#include <deque>
#include <memory>

#include "src/comm/host_communicator.h"

namespace moeccl {

class Stream {
 public:
  explicit Stream(std::shared_ptr<Domain> domain);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Adds a call; throws Error when the communicator is of another domain or has failed.
  void enqueue(HostCommunicator& communicator, Call call);
  // Whether all work is complete. Throws the error that stopped it, again and again.
  bool query();
  void synchronize();

  // For the domain, whose lock is held: ends what is complete, begins what comes next; returns
  // whether anything happened.
  bool advance();
  // Drops what is queued for a communicator that is going away, after its transfers have ended.
  void forget(const HostCommunicator& communicator);
  bool uses(const HostCommunicator& communicator) const;

 private:
  struct Item {
    HostCommunicator* communicator;
    Call call;
    std::uint32_t number;
  };

  // Forgets all that is queued, and fails the communicators of it on all their ranks.
  void abandonAll();
  // Whether the call that failed may still use its buffers.
  bool leaves() const;
  bool empty() const { return queue_.empty(); }
  void throwIfFailed() const;

  std::shared_ptr<Domain> domain_;
  std::deque<Item> queue_;  // the front one is running when active_.slot is set
  HostCommunicator::Active active_ = {};
  using Clock = std::chrono::steady_clock;
  // Of the call that failed: it may not have ended yet.
  RunSlot* leaving_ = nullptr;
  Clock::time_point leavingUntil_;  // is waited for no longer
  const HostCommunicator* leavingFrom_ = nullptr;
  moecclResult_t failure_ = moecclSuccess;
  std::string failureText_;
};

}  // namespace moeccl
