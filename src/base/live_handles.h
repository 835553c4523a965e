// The handles that live in this process. Those that were destroyed, or never made, are told from
// them without reading what they point to; only one that was freed and whose address a newer handle
// of its kind has passes for that. And those that were made before a fork are known.
#pragma once

#include <memory>

namespace moeccl {

enum class HandleKind { communicator, stream, event, grid, layer, profile, route, routePass };
enum class HandleState {
  live,
  unknown,
  inherited,  // made by the process that this one was forked from: it cannot be used here
};

struct KnownHandle {
  HandleState state = HandleState::unknown;
  std::shared_ptr<void> object;  // what was given with it
};

// Takes note of a new handle. `object` lives at least until it is removed.
void addHandle(HandleKind kind, const void* handle, std::shared_ptr<void> object = nullptr);
KnownHandle findHandle(HandleKind kind, const void* handle);
// The same, and forgets it if it is live: of two threads that destroy it one alone gets it.
KnownHandle removeHandle(HandleKind kind, const void* handle);

// Throw Error unless `handle` is live: InvalidArgument, or InvalidUsage after a fork.
void requireLive(HandleKind kind, const void* handle);
void requireLive(HandleKind kind, HandleState state);

}  // namespace moeccl
