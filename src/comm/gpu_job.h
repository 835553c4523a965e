// What the GPU communicators that come from one another share: the watch over their ranks, and a
// thread that tells them who is dead. NCCL alone would leave the others of its ranks waiting.
#pragma once

#include <atomic>
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
  // "rank 3 on node0 is dead: its process 4711 has ended"
  std::string textOf(const Loss& loss, int rank) const;

  // The communicator hears of losses, the earlier ones at once, until it is removed.
  void add(GpuCommunicator& communicator);
  // When the last has been removed, the rank leaves. May be called again.
  void remove(GpuCommunicator& communicator);

 private:
  void live();

  std::atomic<unsigned> woken_ = 0;  // changes when there is news
  std::atomic<bool> stop_ = false;
  const std::unique_ptr<Watch> watch_;
  std::mutex mutex_;
  std::vector<GpuCommunicator*> communicators_;
  std::thread thread_;
};

}  // namespace moeccl
