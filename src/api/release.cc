#include "src/api/release.h"

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "src/bootstrap/signals.h"
#include "src/comm/host_communicator.h"
#include "src/log.h"

namespace moeccl {
namespace {

// Never destroyed: threads may outlive main().
struct Releasing {
  std::mutex mutex;
  std::condition_variable fewer;
  std::vector<std::shared_ptr<CommState>> states;

  static Releasing& all() {
    static Releasing& instance = *new Releasing;
    return instance;
  }
};

// When the process ends. Usually the other ranks end too, and all close in order.
void leaveAll() {
  constexpr std::chrono::seconds kPatience{1};
  Releasing& releasing = Releasing::all();
  std::unique_lock lock(releasing.mutex);
  if (releasing.fewer.wait_for(lock, kPatience, [&] { return releasing.states.empty(); })) return;
  for (const std::shared_ptr<CommState>& state : releasing.states)
    if (auto* const host = dynamic_cast<HostCommunicator*>(state->communicator.get()))
      host->domain().watch().leave();
}

void release(const std::shared_ptr<CommState>& state) {
  try {
    state->communicator->destroy();
  } catch (const std::exception& error) {
    log(LogLevel::info, {}, "moecclCommRelease: %s", error.what());
  }
  Releasing& releasing = Releasing::all();
  const std::lock_guard lock(releasing.mutex);
  std::erase(releasing.states, state);
  releasing.fewer.notify_all();
}

}  // namespace

void releaseLater(std::shared_ptr<CommState> state) {
  static const int kRegistered = std::atexit(leaveAll);
  static_cast<void>(kRegistered);
  Releasing& releasing = Releasing::all();
  {
    const std::lock_guard lock(releasing.mutex);
    releasing.states.push_back(state);
  }
  const SignalsBlocked blocked;
  std::thread([state = std::move(state)] { release(state); }).detach();
}

}  // namespace moeccl
