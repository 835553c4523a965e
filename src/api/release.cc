#include "src/api/release.h"

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
  std::vector<std::shared_ptr<CommState>> states;

  static Releasing& all() {
    static Releasing& instance = *new Releasing;
    return instance;
  }
};

void leaveAll() {
  const std::lock_guard lock(Releasing::all().mutex);
  for (const std::shared_ptr<CommState>& state : Releasing::all().states)
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
