// What the GPU communicators that come from one another share: the watch over their ranks, and a
// thread that tells them who is dead, and has them compare calls that stand still. NCCL alone would
// leave ranks waiting.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "src/watch/watch.h"

namespace moeccl {

class GpuCommunicator;

class GpuJob {
 public:
  explicit GpuJob(std::unique_ptr<Watch> watch);  // throws Error
  ~GpuJob();
  GpuJob(const GpuJob&) = delete;
  GpuJob& operator=(const GpuJob&) = delete;

  Watch& watch() const { return *watch_; }
  // Throws RemoteError where one of `members`, ranks of the job, is dead. The text names it by its
  // place there.
  void requireAlive(std::span<const int> members) const;

  // The communicator hears of losses, the earlier ones at once, until it is removed.
  void add(GpuCommunicator& communicator);
  // When the last has been removed, the rank leaves. May be called again.
  void remove(GpuCommunicator& communicator);

  // Has the thread look what has become of the communicators.
  void look() { wake(false); }
  // Calls `change` while the thread looks at none.
  template <typename Change>
  void hold(const Change& change) {
    const std::lock_guard lock(mutex_);
    change();
  }

 private:
  void live();
  void deliver(const Notice& notice);
  void wake(bool stop);

  std::mutex wakeMutex_;
  std::condition_variable woken_;
  bool news_ = false, stop_ = false;
  const std::unique_ptr<Watch> watch_;
  std::mutex mutex_;
  std::vector<GpuCommunicator*> communicators_;
  std::deque<Notice> early_;  // revocations of communicators that this rank may still make
  std::thread thread_;
};

}  // namespace moeccl
