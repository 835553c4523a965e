// Destroys each released communicator on a thread of its own. At the end of the process it waits a
// second for these threads, then leaves the communicators that are left.
#include "src/api/release.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "src/base/log.h"
#include "src/bootstrap/signals.h"
#include "src/comm/communicator.h"

namespace moeccl {
namespace {

// Never destroyed: threads may outlive main().
struct Releasing {
  std::mutex mutex;
  std::condition_variable fewer;
  using States = std::map<CommState*, std::function<void()>>;  // how to leave
  States states;
  std::vector<States> parents;  // of a process that was forked: never released

  Releasing() {
    pthread_atfork([] { all().mutex.lock(); }, [] { all().mutex.unlock(); },
                   [] {
                     // The threads are the parent's, and so is what they destroy.
                     all().parents.push_back(std::exchange(all().states, {}));
                     all().mutex.unlock();
                   });
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
  if (releasing.fewer.wait_for(lock, kPatience, [&] { return releasing.states.empty(); })) return;
  const auto left = releasing.states;
  lock.unlock();
  for (const auto& [state, leave] : left) leave();
}

void release(const std::shared_ptr<CommState>& state) {
  try {
    state->communicator->destroy();
  } catch (const std::exception& error) {
    log(LogLevel::info, {}, "moecclCommRelease: %s", error.what());
  }
  Releasing& releasing = Releasing::all();
  const std::lock_guard lock(releasing.mutex);
  releasing.states.erase(state.get());
  releasing.fewer.notify_all();
}

}  // namespace

void releaseLater(std::shared_ptr<CommState> state) {
  static const int kRegistered = std::atexit(leaveAll);
  static_cast<void>(kRegistered);
  Releasing& releasing = Releasing::all();
  {
    const std::lock_guard lock(releasing.mutex);
    releasing.states[state.get()] = state->communicator->leaver();
  }
  const SignalsBlocked blocked;
  std::thread([state = std::move(state)] { release(state); }).detach();
}

}  // namespace moeccl
