// The handles that live in this process. A handle that was destroyed, or never made, is told from
// them without reading what it points to. Only one is missed: a freed one whose address a newer
// handle of its kind has, which passes for that. Handles that were made before a fork are known
// too.
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
// The same, and forgets it if it is live. If two threads destroy it, one alone gets it.
KnownHandle removeHandle(HandleKind kind, const void* handle);

// Throw Error unless `handle` is live: InvalidArgument, or InvalidUsage after a fork.
void requireLive(HandleKind kind, const void* handle);
void requireLive(HandleKind kind, HandleState state);

}  // namespace moeccl
