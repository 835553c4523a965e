// Destroys each released communicator on a thread of its own. At the end of the process it waits a
// second for these threads, then leaves the communicators that are left.
#include "src/comm/release.h"

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "src/base/fork.h"
#include "src/base/log.h"
#include "src/bootstrap/signals.h"

namespace moeccl {
namespace {

// Never destroyed: threads may outlive main().
struct Releasing {
  std::mutex mutex;
  std::condition_variable fewer;
  using Leavers = std::map<Communicator*, std::function<void()>>;
  Leavers leavers;
  std::vector<Leavers> parents;  // of a process that was forked: never released

  Releasing() {
    atFork({[] { all().mutex.lock(); }, [] { all().mutex.unlock(); },
            // The threads are the parent's, and so is what they destroy.
            [] { all().parents.push_back(std::exchange(all().leavers, {})); }});
  }
  static Releasing& all() {
    static Releasing& instance = *new Releasing;
    return instance;
  }
};

// Runs when the process ends. Usually the other ranks end too, and all close in order.
void leaveAll() {
  constexpr std::chrono::seconds kPatience{1};
  Releasing& releasing = Releasing::all();
  std::unique_lock lock(releasing.mutex);
  if (releasing.fewer.wait_for(lock, kPatience, [&] { return releasing.leavers.empty(); })) return;
  const auto left = releasing.leavers;
  lock.unlock();
  for (const auto& [communicator, leave] : left) leave();
}

void release(const std::shared_ptr<Communicator>& communicator) {
  try {
    communicator->destroy();
  } catch (const std::exception& error) {
    log(LogLevel::info, {}, "moecclCommRelease: %s", error.what());
  }
  Releasing& releasing = Releasing::all();
  const std::lock_guard lock(releasing.mutex);
  releasing.leavers.erase(communicator.get());
  releasing.fewer.notify_all();
}

}  // namespace

void releaseLater(std::shared_ptr<Communicator> communicator) {
  static const int kRegistered = std::atexit(leaveAll);
  static_cast<void>(kRegistered);
  Releasing& releasing = Releasing::all();
  {
    const std::lock_guard lock(releasing.mutex);
    releasing.leavers[communicator.get()] = communicator->leaver();
  }
  const SignalsBlocked blocked;
  std::thread([communicator = std::move(communicator)] { release(communicator); }).detach();
}

}  // namespace moeccl
