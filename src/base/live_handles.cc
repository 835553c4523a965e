// Keeps the handles in several maps, each with a mutex of its own. Each entry has the number of
// forks before it, so that a child knows those of its parent.
#include "src/base/live_handles.h"

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "src/base/error.h"
#include "src/base/fork.h"

namespace moeccl {
namespace {

struct LiveHandle {
  HandleKind kind;
  unsigned forks;  // before it was made
  std::shared_ptr<void> object;
};

// One of several, so that ranks that are threads seldom wait for each other.
struct Shard {
  std::mutex mutex;
  std::unordered_map<const void*, LiveHandle> entries;
};

class Handles {
 public:
  Handles() {
    atFork({[] { all().lock(); }, [] { all().unlock(); }, nullptr});
  }
  // It is never destroyed: threads may outlive main().
  static Handles& all() {
    static Handles& instance = *new Handles;
    return instance;
  }

  Shard& shardOf(const void* handle) {
    return shards_[reinterpret_cast<std::uintptr_t>(handle) / 64 % shards_.size()];
  }

 private:
  void lock() {
    for (Shard& shard : shards_) shard.mutex.lock();
  }
  void unlock() {
    for (Shard& shard : shards_) shard.mutex.unlock();
  }

  std::array<Shard, 16> shards_;
};

HandleState stateOf(const LiveHandle& entry, HandleKind kind) {
  if (entry.kind != kind) return HandleState::unknown;
  // A profile is memory and nothing else.
  if (kind == HandleKind::profile) return HandleState::live;
  return entry.forks == forks() ? HandleState::live : HandleState::inherited;
}

const char* nameOf(HandleKind kind) {
  switch (kind) {
    case HandleKind::communicator:
      return "comm";
    case HandleKind::stream:
      return "stream";
    case HandleKind::event:
      return "event";
    case HandleKind::grid:
      return "grid";
    case HandleKind::layer:
      return "layer";
    case HandleKind::routePass:
      return "pass";
    case HandleKind::profile:
      return "profile";
    case HandleKind::route:
      return "route";
  }
  return "handle";
}

}  // namespace

void addHandle(HandleKind kind, const void* handle, std::shared_ptr<void> object) {
  Shard& shard = Handles::all().shardOf(handle);
  const std::lock_guard lock(shard.mutex);
  shard.entries.insert_or_assign(handle, LiveHandle{kind, forks(), std::move(object)});
}

KnownHandle findHandle(HandleKind kind, const void* handle) {
  Shard& shard = Handles::all().shardOf(handle);
  const std::lock_guard lock(shard.mutex);
  const auto known = shard.entries.find(handle);
  if (known == shard.entries.end()) return {};
  return {stateOf(known->second, kind), known->second.object};
}

KnownHandle removeHandle(HandleKind kind, const void* handle) {
  Shard& shard = Handles::all().shardOf(handle);
  const std::lock_guard lock(shard.mutex);
  const auto known = shard.entries.find(handle);
  if (known == shard.entries.end()) return {};
  const HandleState state = stateOf(known->second, kind);
  if (state != HandleState::live) return {state, nullptr};
  KnownHandle removed{state, std::move(known->second.object)};
  shard.entries.erase(known);
  return removed;
}

void requireLive(HandleKind kind, const void* handle) {
  requireLive(kind, findHandle(kind, handle).state);
}

void requireLive(HandleKind kind, HandleState state) {
  const std::string name = nameOf(kind);
  if (state == HandleState::unknown)
    throw Error(moecclInvalidArgument,
                name + " is no " + name + " of this library: it was destroyed, or never made");
  if (state == HandleState::inherited)
    throw Error(moecclInvalidUsage,
                name +
                    " was made before fork(); a child process can use nothing of its parent's, "
                    "not even destroy it");
}

}  // namespace moeccl
