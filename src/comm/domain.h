// What relatives share: a communicator and all that was split from it use one transport, and
// whoever progresses it advances the work of all of them.
//
// Threads. Communicators of one domain may be used by different threads, and a domain may have a
// progress thread of its own. The transport allows one thread at a time, so a Domain::Lock is held
// while it is used. One of the threads that wait leads: it polls, and sleeps in the transport, all
// inside the lock. It lets in whoever asks for the lock (contenders_) and wakes it for that. The
// others follow: they sleep outside the lock until the leader has advanced something, or leaves.
//
// The progress thread is there for work on streams. While there is none it sleeps outside the lock,
// and while a caller waits that caller leads: a call by itself never waits for another thread's
// turn.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "src/comm/plan_cache.h"
#include "src/comm/waiting.h"
#include "src/exec/transport.h"
#include "src/watch/watch.h"

namespace moeccl {

class Domain {
 public:
  // A communicator that has a share in the domain. The lock is held in all that a domain calls.
  class Member {
   public:
    virtual std::uint32_t number() const = 0;
    virtual moecclResult_t failure() const = 0;
    virtual bool wasShrunk() const = 0;
    // Posts receives that had to wait; returns whether there was one.
    virtual bool receiveWaiting() = 0;
    // Fails for a run of its own that has not advanced for so long.
    virtual void timedOut(const Run& run, std::chrono::milliseconds timeout) = 0;
    // For a run that does not advance: looks for messages of ranks that have made another call than
    // this one, and asks about them.
    virtual void compare(const HostRun& run, std::chrono::steady_clock::duration still) = 0;
    // Tells the others for whom this rank waits in a run that is soon given up.
    virtual void tellAwaited(const HostRun& run) = 0;
    // Returns whether the notice was for this communicator.
    virtual bool accepts(const Notice& notice) = 0;
    // A rank of the domain is lost; if it is one of this communicator's, it is dead to it.
    virtual void lost(const Loss& loss) = 0;
    // Another communicator leaves the domain.
    virtual void forget(const Member& other) = 0;

   protected:
    ~Member() = default;
  };
  // Work that goes on whenever anybody polls: a stream.
  class Work {
   public:
    // Ends what is complete, begins what comes next; returns whether anything happened.
    virtual bool advance() = 0;
    // Whether somebody should poll for it.
    virtual bool hasWork() const = 0;
    virtual bool uses(const Member& communicator) const = 0;
    // Drops what is queued for a communicator that is going away, after its transfers have ended.
    virtual void forget(const Member& communicator) = 0;

   protected:
    ~Work() = default;
  };

  // Threads that wait call `function` outside the lock; the progress thread does not. It may be
  // nullptr. `every`: how long a thread waits between two calls; 0: it calls after each look in
  // vain.
  struct Idle {
    void (*function)(void* context) = nullptr;
    void* context = nullptr;
    std::chrono::milliseconds every{0};
  };
  // `trace`: nullptr for none. It is written when the last communicator has left.
  Domain(std::unique_ptr<Transport> transport, std::unique_ptr<Watch> watch,
         std::unique_ptr<Trace> trace, bool progressThread, Idle idle, Waiting waiting = Waiting());
  ~Domain();
  Domain(const Domain&) = delete;
  Domain& operator=(const Domain&) = delete;

  class Lock {
   public:
    explicit Lock(Domain& domain) : domain_(domain), lock_(domain.mutex_, std::defer_lock) {
      acquire();
    }
    // Calls what is due, outside the lock.
    ~Lock() {
      if (lock_.owns_lock()) domain_.wakeProgressThread();
      callDue();
    }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
    // Lets another thread in if one is waiting; returns whether it did.
    bool yield();

   private:
    friend class Domain;
    void acquire();
    // Lets go of the lock if anything is due; returns whether it did.
    bool callDue();

    Domain& domain_;
    std::unique_lock<std::mutex> lock_;
  };

  Transport& transport() { return *transport_; }
  Watch& watch() { return *watch_; }
  Trace* trace() { return trace_.get(); }

  // Polls until nothing happens any more; returns whether anything did.
  bool advance();

  // The functions below want the lock to be held.

  // Advances everything; returns whether anything happened.
  bool poll();
  // Tells communicators and the transport what the watch has learned; returns whether it had.
  bool takeNews();
  // Waits until done() holds. Progress is made in here, or by the progress thread. `done` is asked
  // often and must be cheap.
  template <typename Done>
  void wait(Lock& lock, Done done) {
    for (Waiter self; !done();) waitOnce(lock, self);
    announce();
  }
  // Like wait, for `limit` at most; returns done().
  template <typename Done>
  bool waitFor(Lock& lock, std::chrono::milliseconds limit, Done done) {
    const auto end = Clock::now() + limit;
    for (Waiter self; !done() && Clock::now() < end;) waitOnce(lock, self);
    announce();
    return done();
  }

  // Fails what has not advanced for its communicator's timeout while somebody looked.
  void checkTimeouts();
  // Watches a run for a timeout (negative: none), until it is idle. `collective`: the same run if
  // it is of a collective, to be compared with what other ranks call; else nullptr.
  void watch(Member& communicator, Run& run, HostRun* collective,
             std::chrono::milliseconds timeout);
  void unwatch(const Run& run);
  // `function` is called as soon as nobody holds the lock.
  void callSoon(std::function<void()> function) { due_.push_back(std::move(function)); }

  // Throws Error where the last one has left.
  void add(Member& communicator);
  // The last one to leave closes the transport: gracefully within `limit`, unless `abrupt`. Returns
  // whether all ranks came to close it.
  bool remove(Member& communicator, bool abrupt, std::chrono::milliseconds limit);
  // Takes a run whose transfers would not end; it lives until the transport is closed.
  void keep(std::shared_ptr<void> run) { kept_.push_back(std::move(run)); }
  void add(Work& stream);
  void remove(Work& stream);

  // Communicators' numbers, which are part of all tags. One is free again when its communicator
  // has been destroyed in order, since all messages for this rank have then been received. One that
  // has failed is never used again, nor one that was shrunk: its messages, notices and posts may
  // still arrive. Ranks agree on the number of a new one while other threads may be agreeing on
  // that of another, so they reserve it first.
  //
  // The first free number from `from` on, continuing at 0 after the last; -1 when none is free.
  int firstFreeNumber(int from) const;
  // Returns false when it is not free.
  bool reserve(int number);
  void unreserve(int number) { numbers_[static_cast<std::size_t>(number)] = NumberState::free; }
  const std::vector<Work*>& streams() const { return streams_; }
  // Takes what has come for a communicator of that number, and throws it away; returns whether all
  // of that is over.
  bool drop(std::uint32_t number);

 private:
  using Clock = std::chrono::steady_clock;

  struct Watched {
    Member* communicator;
    Run* run;
    HostRun* collective;
    std::chrono::milliseconds timeout;
    int unfinished;
    Clock::duration still;     // how long it has not advanced while somebody looked
    Clock::duration compared;  // `still` at which it was last compared with what other ranks call
  };

  // A thread that waits.
  struct Waiter {
    int looks = 0;               // in vain, one after another
    Clock::time_point idleAt{};  // when the idle function was called, or could have been at first
  };

  // One round of waiting.
  void waitOnce(Lock& lock, Waiter& self);
  // Returns the looks in vain.
  int lead(Lock& lock, int looks);
  void follow(Lock& lock);
  int longestSleep() const;  // in milliseconds
  // Wakes the followers.
  void announce();
  void deliver(const Notice& notice);
  void deliver(const Loss& loss);
  void lose(const Loss& loss);
  void forgetTheLost();
  void letArrive();
  void progressLoop();
  bool hasWorkOnStreams() const;
  // Wakes the progress thread where it sleeps, and should not.
  void wakeProgressThread();

  // failed: its communicator is no more, and messages for it may still come.
  enum class NumberState : std::uint8_t { free, reserved, used, failed };

  void callIdle(Lock& lock, Waiter& self);

  // Drops what has come for communicators that are no more.
  void dropForTheFailed();

  std::vector<std::shared_ptr<void>> kept_;
  struct Dropped : Transfer {
    bool over = false;
  };
  std::list<Dropped> dropped_;  // messages that nobody wants
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Watch> watch_;  // wakes the transport
  std::unique_ptr<Trace> trace_;
  std::mutex mutex_;
  std::atomic<int> contenders_ = 0;
  std::vector<Member*> communicators_;
  std::vector<Work*> streams_;
  std::vector<Watched> watched_;
  std::deque<Notice> early_;  // notices for communicators that this rank may still make
  std::vector<Loss> losses_;  // all of which communicators have heard
  std::uint64_t news_ = 0;    // of the watch's, what has been delivered
  Clock::time_point lastLook_ = Clock::now();
  std::vector<NumberState> numbers_ =
      std::vector<NumberState>(std::size_t{1} << kCommBits, NumberState::free);
  bool anyFailed_ = false;
  const Idle idle_;
  Waiting waiting_;
  std::vector<std::function<void()>> due_;
  std::thread progressThread_;
  bool sleeps_ = false;  // the progress thread, until wakeUp_
  std::condition_variable wakeUp_;
  bool stop_ = false;
  bool leading_ = false;  // somebody leads; seen only by those whom the leader lets in
  int followers_ = 0;
  unsigned polls_ = 0;
  // What followers sleep on. Not mutex_: a follower must get that the way all others do, or the
  // leader would not hear of it.
  std::mutex advancedMutex_;
  std::condition_variable advanced_;
  std::uint64_t advances_ = 0;
};

}  // namespace moeccl
