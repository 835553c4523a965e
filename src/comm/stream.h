// A queue of calls on host memory. Work on one stream runs in order; it advances whenever
// anybody polls the domain.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "src/base/live_handles.h"
#include "src/comm/event.h"
#include "src/comm/host_communicator.h"

namespace moeccl {

class Stream final : public CallQueue {
 public:
  explicit Stream(std::shared_ptr<Domain> domain);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  void enqueue(HostCommunicator& communicator, Call call) override;
  // Calls that have their numbers (HostCommunicator::takeNumber).
  struct Queued {
    HostCommunicator* communicator;
    Call call;
    std::uint32_t number;
  };
  // Adds calls that begin at once, and are complete together. Throws Error as above; then the
  // communicators have failed.
  void enqueueTogether(std::vector<Queued> calls);
  // Throws Error when a communicator is of another domain.
  void requireRelative(HostCommunicator& communicator) const;
  // Whether all work is complete. Throws the error that stopped it, again and again.
  bool query();
  void synchronize() override;

  // `event` stands for all that is queued.
  void record(Event& event);
  // What is queued from now on begins when `event` is complete. Throws Error where that is of
  // another domain.
  void wait(const Event& event);

  // With the domain's lock held.
  bool advance() override;
  bool hasWork() const override { return !queue_.empty() || !failing_.empty(); }
  void forget(const Domain::Member& communicator) override;
  bool uses(const Domain::Member& communicator) const override;

 private:
  // A call, a place that an event stands for, or one to wait for.
  struct Item {
    HostCommunicator* communicator = nullptr;  // of a call
    Call call = {};
    std::uint32_t number = 0;
    bool joined = false;  // it begins with the call before it
    std::shared_ptr<Event::Place> recorded, awaited;
  };
  struct Running {
    HostCommunicator::Active active;
    bool over = false;
  };
  // The run of a call that failed: it may not have ended yet.
  struct Leaving {
    const Domain::Member* communicator;
    const Run* run;
    std::shared_ptr<const void> keep;  // whose the run is, where the communicator has it no longer
  };

  void begin();
  // Ends those that run; returns whether all have.
  bool endRunning();
  // Forgets all that is queued, and fails the communicators of it on all their ranks.
  void abandonAll();
  void fail(moecclResult_t result, const char* text);
  // Tells events of the failure, when nothing uses callers' buffers any more.
  bool settleFailed();
  bool leaves() const;
  bool empty() const { return queue_.empty(); }
  void throwIfFailed() const;

  std::shared_ptr<Domain> domain_;
  std::deque<Item> queue_;  // as many of the first are running as running_ has
  std::vector<Running> running_;
  using Clock = std::chrono::steady_clock;
  std::vector<Leaving> leaving_;
  std::vector<std::shared_ptr<Event::Place>> failing_;  // which will not be reached
  Clock::time_point leavingUntil_;                      // is waited for no longer
  moecclResult_t failure_ = moecclSuccess;
  std::string failureText_;
};

// The handle of a stream, moecclStream_t.
inline void* streamHandle(Stream& stream) { return static_cast<CallQueue*>(&stream); }
// The stream that a handle stands for. Throws Error unless it is one that lives.
inline Stream* streamOf(void* stream) {
  requireLive(HandleKind::stream, stream);
  return static_cast<Stream*>(static_cast<CallQueue*>(stream));
}
// The same; the handle lives no more.
inline Stream* takeStream(void* stream) {
  requireLive(HandleKind::stream, removeHandle(HandleKind::stream, stream).state);
  return static_cast<Stream*>(static_cast<CallQueue*>(stream));
}

}  // namespace moeccl
