// What functions of routes and of passes begin with: they hold what they were given while they run,
// and fail on all ranks where one of them fails by itself.
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <new>

#include "src/api/handles.h"
#include "src/route/route_handles.h"

namespace moeccl {

// A route, and its communicator, as a function was given it.
struct HeldRoute {
  explicit HeldRoute(moecclRoute_t given) : handle(given) {
    if (given == nullptr) return;
    const KnownHandle known = findHandle(HandleKind::route, given);
    if (known.state != HandleState::live) return;
    route = std::static_pointer_cast<moecclRoute>(known.object);
    comm = hold(route->comm);
  }

  moecclRoute& get() const {
    require(handle != nullptr, "route is NULL; pass a route made by moecclRouteCreate");
    requireLive(HandleKind::route, handle);
    return *route;
  }
  Communicator& communicator() const { return communicatorOf(comm); }

  moecclRoute_t handle;
  std::shared_ptr<moecclRoute> route;
  HeldComm comm;
};

// An open pass, the same.
struct HeldPass {
  explicit HeldPass(moecclRoutePass_t given) : handle(given) {
    if (given == nullptr || findHandle(HandleKind::routePass, given).state != HandleState::live)
      return;
    route = given->route;
    if (route != nullptr) comm = hold(route->comm);
  }

  RoutePass& get() const {
    require(handle != nullptr, "pass is NULL; pass one that moecclRouteBegin has made");
    requireLive(HandleKind::routePass, handle);
    require(route != nullptr, "pass has ended; moecclRouteBegin makes another");
    return *handle->pass;
  }
  // For functions that need the rows, which latency mode knows only when they have come.
  RoutePass& getCounted() const {
    if (!get().isCounted())
      throw Error(moecclInvalidUsage,
                  "in latency mode the rows are known after moecclPassDispatch; call that first");
    return get();
  }
  RoutePass& getForGradients() const {
    RoutePass& it = get();
    if (shape().latency)
      throw Error(
          moecclInvalidUsage,
          "a route in latency mode has no gradients; config.mode is \"throughput\" for them");
    if (shape().scheduled && !shape().training)
      throw Error(moecclInvalidUsage,
                  "the route keeps nothing for gradients: make it with config.training 1");
    return it;
  }
  const RouteShape& shape() const { return route->shape; }
  std::size_t tokenBytes(std::size_t each) const {
    return static_cast<std::size_t>(get().tokens()) * each;
  }
  std::size_t rowsBytes(std::size_t each) const {
    return static_cast<std::size_t>(get().roomForRows()) * each;
  }
  std::size_t choicesBytes() const {
    return tokenBytes(static_cast<std::size_t>(shape().choices) * shape().weightBytes());
  }
  Communicator& communicator() const { return communicatorOf(comm); }

  moecclRoutePass_t handle;
  std::shared_ptr<moecclRoute> route;
  HeldComm comm;
};

template <typename Held, typename Handle, typename Body>
moecclResult_t on(const char* function, Handle handle, Body&& body) {
  const Held held(handle);
  return boundary(function, lastErrorOf(held.comm), [&] { body(held); });
}

// Runs what other ranks wait for. All ranks get errors of communication. If this rank fails by
// itself, for want of memory say, it revokes the communicator, so that the others are told.
template <typename Body>
void orRevoke(Communicator& communicator, Body&& body) {
  try {
    body();
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    communicator.revoke("out of memory in a pass of a route");
    throw;
  } catch (const std::exception& error) {
    communicator.revoke(error.what());
    throw;
  }
}

}  // namespace moeccl
