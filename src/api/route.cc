// Routes and their passes.
#include "moeccl/route.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/reduce.h"
#include "src/api/arguments.h"
#include "src/api/questions.h"
#include "src/api/route_config.h"
#include "src/base/structs.h"
#include "src/base/text.h"
#include "src/bootstrap/oob.h"
#include "src/comm/agreement.h"
#include "src/comm/launch.h"
#include "src/route/route_handles.h"

namespace moeccl {
namespace {

constexpr StructKind<moecclRouteInfo_t> kRouteInfo = {
    "info", "MOECCL_ROUTE_INFO_INITIALIZER", MOECCL_ROUTE_INFO_MAGIC,
    MOECCL_END_OF(moecclRouteInfo_t, maxRows), MOECCL_END_OF(moecclRouteInfo_t, maxRows)};
constexpr StructKind<moecclRouting_t> kRouting = {
    "routing", "MOECCL_ROUTING_INITIALIZER", MOECCL_ROUTING_MAGIC,
    MOECCL_END_OF(moecclRouting_t, error), MOECCL_END_OF(moecclRouting_t, error)};
constexpr StructKind<moecclRows_t> kRows = {"rows", "MOECCL_ROWS_INITIALIZER", MOECCL_ROWS_MAGIC,
                                            MOECCL_END_OF(moecclRows_t, deviceBegins),
                                            MOECCL_END_OF(moecclRows_t, experts)};

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

void requireDistinct(const RouteShape& shape, const Routing& routing) {
  for (std::int64_t token = 0; token < routing.tokens; ++token) {
    const std::int32_t* const its = routing.experts + token * shape.choices;
    for (int i = 1; i < shape.choices; ++i)
      if (its[i] >= 0 && std::find(its, its + i, its[i]) != its + i)
        invalid("routing.experts[" + std::to_string(token) + "][" + std::to_string(i) + "] is " +
                std::to_string(its[i]) +
                " again; in latency mode, or with a schedule, a token may have each expert once");
  }
}

// Throws Error for what is wrong whatever the choices are.
void checkTokens(const RouteShape& shape, const Routing& routing) {
  const std::int64_t most = std::numeric_limits<std::int32_t>::max() / shape.choices;
  if (routing.tokens < 0 || routing.tokens > most ||
      (shape.maxTokens > 0 && routing.tokens > shape.maxTokens))
    invalid("routing.tokens is " + std::to_string(routing.tokens) + "; it must be 0 to " +
            std::to_string(shape.maxTokens > 0 ? std::min(shape.maxTokens, most) : most));
  if (!shape.hasWeights())
    require(routing.weights == nullptr,
            "routing.weights is not NULL, but config.weights is moecclRouteWeightsNone");
  if (routing.tokens == 0) return;
  require(routing.experts != nullptr, "routing.experts is NULL while there are tokens");
  if (shape.hasWeights())
    require(routing.weights != nullptr,
            "routing.weights is NULL; each choice needs a weight unless config.weights is "
            "moecclRouteWeightsNone");
}

void checkChoices(const RouteShape& shape, const Routing& routing) {
  for (std::int64_t i = 0; i < routing.tokens * shape.choices; ++i)
    if (routing.experts[i] < -1 || routing.experts[i] >= shape.experts.count)
      invalid("routing.experts[" + std::to_string(i / shape.choices) + "][" +
              std::to_string(i % shape.choices) + "] is " + std::to_string(routing.experts[i]) +
              "; it must be an expert, 0 to " + std::to_string(shape.experts.count - 1) +
              ", or -1 for none");
  if (shape.latency || shape.scheduled) requireDistinct(shape, routing);
}

// Copies the caller's choices and weights to the host, and checks them.
Routing readRouting(moecclRoute& route, Communicator& communicator, Routing routing,
                    moecclStream_t stream) {
  checkTokens(route.shape, routing);
  const auto choices = static_cast<std::size_t>(routing.tokens * route.shape.choices);
  route.experts.resize(choices);
  route.weights.resize(route.shape.hasWeights() ? choices * route.shape.weightBytes() : 0);
  const Communicator::Reading readings[] = {
      {route.experts.data(), routing.experts, choices * sizeof(std::int32_t)},
      {route.weights.data(), routing.weights, route.weights.size()}};
  communicator.read(readings, stream);
  routing.experts = route.experts.data();
  routing.weights = route.shape.hasWeights() ? route.weights.data() : nullptr;
  checkChoices(route.shape, routing);
  return routing;
}

void begin(const HeldRoute& held, const moecclRouting_t* theirs, moecclStream_t stream,
           RoutePass& pass) {
  moecclRoute& route = held.get();
  Communicator& communicator = held.communicator();
  Routing routing{};
  const auto read = [&] {
    const moecclRouting_t given = readStruct(kRouting, theirs);
    if (given.error != nullptr) invalid(clipped(given.error, MOECCL_REVOKE_TEXT_BYTES));
    routing = {given.tokens, given.experts, given.weights};
    if (pass.beginsOnGpu()) return checkTokens(route.shape, routing);
    routing = readRouting(route, communicator, routing, stream);
  };
  if (route.shape.latency) {
    read();
    return pass.begin(communicator, routing, stream);
  }
  if (!pass.tellsOthers()) {
    // Nobody asks how the others fare, so they are told.
    if (const std::optional<Error> wrong = failureOf(read)) {
      communicator.revoke(wrong->what());
      throw *wrong;
    }
    return orRevoke(communicator, [&] { pass.begin(communicator, routing, stream); });
  }
  std::optional<Error> wrong = failureOf(read);
  // Nobody can be told in a capture.
  if (wrong && wrong->result() == moecclInvalidUsage) throw *wrong;
  routing.wrong = std::move(wrong);
  orRevoke(communicator, [&] { pass.begin(communicator, routing, stream); });
}

void requireAlignedOnGpu(const HeldPass& held, std::initializer_list<NamedBuffer> buffers) {
  if (!held.communicator().device()) return;
  for (const NamedBuffer& buffer : buffers)
    requireAligned(buffer.name, buffer.at, sizeOf(held.shape().datatype));
}

RouteSchedules& schedulesOf(moecclRoute& route) {
  if (route.schedules == nullptr)
    throw Error(moecclInvalidUsage,
                "the route has no schedule: it is dropless, shares no tokens, and config.schedule "
                "names none");
  return *route.schedules;
}

// What the library does not need must be NULL.
void requireNone(std::initializer_list<const void*> buffers, const char* text) {
  for (const void* const buffer : buffers) require(buffer == nullptr, text);
}

}  // namespace
}  // namespace moeccl

using moeccl::HeldPass;
using moeccl::HeldRoute;
using moeccl::NamedBuffer;

moecclResult_t moecclRouteCreate(moecclGrid_t grid, const moecclRouteConfig_t* config,
                                 moecclRoute_t* route) {
  const auto state = moeccl::holdWorld(grid);
  return moeccl::boundary("moecclRouteCreate", moeccl::lastErrorOf(state), [&] {
    const moecclGrid& it = moeccl::gridOf(grid);
    moeccl::Communicator& communicator = moeccl::communicatorOf(state);
    moeccl::CommunicatorOob oob(communicator);
    moeccl::RouteShape shape{};
    moeccl::agreeAfter(oob, [&] {
      moeccl::require(route != nullptr, "route is NULL; pass where to store the route");
      shape =
          moeccl::routeShapeOf(config, moeccl::asGrid(it.shape), communicator.device().has_value());
    });
    moeccl::requireSameShape(communicator, shape);
    std::unique_ptr<moeccl::RouteSchedules> schedules;
    if (shape.scheduled) {
      moeccl::agreeAfter(oob, [&] {
        schedules = std::make_unique<moeccl::RouteSchedules>(
            grid, shape, communicator.device() ? communicator.device()->number : -1,
            [grid](const moecclMoeConfig_t& layer) { return moeccl::candidatesOf(grid, layer); });
      });
      // Collective itself.
      if (schedules->mayRoute()) moeccl::agreeAfter(oob, [&] { schedules->makeRoute(); });
    }
    const auto made = std::make_shared<moecclRoute>(
        it.comms[moecclGroupWorld], communicator, std::move(shape),
        moeccl::RoutePrices{communicator.model().links(), communicator.model().sharing()},
        std::move(schedules));
    moeccl::addHandle(moeccl::HandleKind::route, made.get(), made);
    *route = made.get();
  });
}

moecclResult_t moecclRouteDestroy(moecclRoute_t route) {
  if (route == nullptr) return moecclSuccess;
  // Owns the route, until this returns.
  const moeccl::KnownHandle known = moeccl::removeHandle(moeccl::HandleKind::route, route);
  return moeccl::boundary("moecclRouteDestroy", nullptr,
                          [&] { moeccl::requireLive(moeccl::HandleKind::route, known.state); });
}

moecclResult_t moecclRouteGetInfo(moecclRoute_t route, moecclRouteInfo_t* info) {
  return moeccl::on<HeldRoute>("moecclRouteGetInfo", route, [&](const HeldRoute& held) {
    const moecclRoute& it = held.get();
    moecclRouteInfo_t ours = MOECCL_ROUTE_INFO_INITIALIZER;
    ours.firstExpert = it.shape.firstExpert(it.rank);
    ours.localExperts = it.shape.localExperts(it.rank);
    ours.tokenBytes = it.shape.rowBytes();
    ours.maxRows = it.maxRows();
    moeccl::writeStruct(moeccl::kRouteInfo, ours, info);
  });
}

moecclResult_t moecclRouteGetLoads(moecclRoute_t route, int64_t* choices, int64_t* rows,
                                   int reset) {
  return moeccl::on<HeldRoute>("moecclRouteGetLoads", route, [&](const HeldRoute& held) {
    moecclRoute& it = held.get();
    moeccl::Communicator& communicator = held.communicator();
    const std::vector<std::int64_t> own = it.loads(communicator);
    const std::size_t experts = own.size() - 1;
    std::vector<std::int64_t> all(own.size() * static_cast<std::size_t>(communicator.ranks()));
    communicator.allgather(own.data(), all.data(), own.size() * sizeof(std::int64_t));
    if (choices != nullptr) std::fill_n(choices, experts, 0);
    for (auto theirs = all.begin(); theirs != all.end(); ++theirs) {
      for (std::size_t expert = 0; expert < experts; ++expert, ++theirs)
        if (choices != nullptr) choices[expert] += *theirs;
      if (rows != nullptr) *rows++ = *theirs;
    }
    if (reset != 0) it.forgetLoads(communicator);
  });
}

moecclResult_t moecclRouteBegin(moecclRoute_t route, const moecclRouting_t* routing,
                                moecclStream_t stream, moecclRoutePass_t* pass) {
  return moeccl::on<HeldRoute>("moecclRouteBegin", route, [&](const HeldRoute& held) {
    moecclRoute& it = held.get();
    moeccl::require(pass != nullptr, "pass is NULL; pass where to store the pass");
    moeccl::requireStream(held.communicator(), stream);
    moecclRoutePass* made = nullptr;
    moeccl::orRevoke(held.communicator(), [&] { made = it.open(held.communicator()); });
    try {
      moeccl::begin(held, routing, stream, *made->pass);
    } catch (...) {
      moecclRoute::end(*made);
      throw;
    }
    it.lastAlgorithm = made->pass->algorithmName();
    *pass = made;
  });
}

moecclResult_t moecclRouteExplain(moecclRoute_t route, char* text, size_t* bytes) {
  return moeccl::on<HeldRoute>("moecclRouteExplain", route, [&](const HeldRoute& held) {
    moecclRoute& it = held.get();
    moeccl::requireRoom(text, bytes);
    if (it.schedules != nullptr) return moeccl::handOut(it.schedules->explain(), text, bytes);
    if (it.lastAlgorithm == nullptr)
      throw moeccl::Error(moecclInvalidUsage, "no pass has begun; call moecclRouteBegin first");
    const std::string how = it.shape.algorithm != nullptr ? "as config.algorithm says"
                            : it.shape.latency
                                ? "the fastest as predicted for config.maxTokens that choose evenly"
                                : "the fastest as predicted for what ranks brought to this Begin";
    moeccl::handOut(std::string(it.lastAlgorithm) + ", " + how + "\n", text, bytes);
  });
}

moecclResult_t moecclRouteSave(moecclRoute_t route, char* text, size_t* bytes) {
  return moeccl::on<HeldRoute>("moecclRouteSave", route, [&](const HeldRoute& held) {
    moecclRoute& it = held.get();
    moeccl::requireRoom(text, bytes);
    moeccl::handOut(moeccl::schedulesOf(it).save(), text, bytes);
  });
}

moecclResult_t moecclRouteRestore(moecclRoute_t route, const char* text) {
  return moeccl::on<HeldRoute>("moecclRouteRestore", route, [&](const HeldRoute& held) {
    moecclRoute& it = held.get();
    moeccl::Communicator& communicator = held.communicator();
    moeccl::CommunicatorOob oob(communicator);
    moeccl::agreeAfter(oob, [&] {
      moeccl::require(text != nullptr, "text is NULL; pass what moecclRouteSave gave");
      moeccl::schedulesOf(it);
    });
    moeccl::requireSameText(communicator, text);
    std::function<void()> rest;
    moeccl::agreeAfter(oob, [&] { rest = moeccl::schedulesOf(it).restore(text); });
    rest();
  });
}

moecclResult_t moecclPassEnd(moecclRoutePass_t pass) {
  if (pass == nullptr) return moecclSuccess;
  return moeccl::on<HeldPass>("moecclPassEnd", pass, [&](const HeldPass& held) {
    held.get();
    moecclRoute::end(*pass);
  });
}

moecclResult_t moecclPassGetRows(moecclRoutePass_t pass, moecclRows_t* rows) {
  return moeccl::on<HeldPass>("moecclPassGetRows", pass, [&](const HeldPass& held) {
    moeccl::RoutePass& it = held.get();
    moecclRows_t ours = MOECCL_ROWS_INITIALIZER;
    ours.algorithm = it.algorithmName();
    ours.deviceBegins = it.deviceBegins();
    if (it.isCounted()) {
      moeccl::Communicator& communicator = held.communicator();
      const std::vector<std::int64_t>& begins = it.expertBegins(communicator);
      it.rankCounts(communicator, pass->counts.data());
      ours.rows = begins.back();
      ours.begins = begins.data();
      ours.counts = pass->counts.data();
      ours.weights = it.rowWeights();
      ours.experts = it.rowExperts();
      ours.dropped = it.dropped();
    }
    moeccl::writeStruct(moeccl::kRows, ours, rows);
  });
}

moecclResult_t moecclPassDispatch(moecclRoutePass_t pass, const void* tokens, void* rows,
                                  moecclStream_t stream) {
  return moeccl::on<HeldPass>("moecclPassDispatch", pass, [&](const HeldPass& held) {
    moeccl::RoutePass& it = held.get();
    moeccl::Communicator& communicator = held.communicator();
    const std::size_t row = held.shape().rowBytes();
    moeccl::requireRoom(
        {{"tokens", tokens, held.tokenBytes(row)}, {"rows", rows, held.rowsBytes(row)}});
    moeccl::requireStream(communicator, stream);
    moeccl::orRevoke(communicator, [&] { it.dispatch(communicator, tokens, rows, stream); });
  });
}

moecclResult_t moecclPassCombine(moecclRoutePass_t pass, const void* rows, void* output,
                                 moecclStream_t stream) {
  return moeccl::on<HeldPass>("moecclPassCombine", pass, [&](const HeldPass& held) {
    moeccl::RoutePass& it = held.getCounted();
    moeccl::Communicator& communicator = held.communicator();
    const std::size_t row = held.shape().combineRowBytes();
    const NamedBuffer from{"rows", rows, held.rowsBytes(row)},
        to{"output", output, held.tokenBytes(row)};
    moeccl::requireRoom({from, to});
    moeccl::requireAlignedOnGpu(held, {from, to});
    moeccl::requireStream(communicator, stream);
    moeccl::orRevoke(communicator, [&] { it.combine(communicator, rows, output, true, stream); });
  });
}

moecclResult_t moecclPassCombineBackward(moecclRoutePass_t pass, const void* outputGradients,
                                         const void* rows, void* rowGradients,
                                         void* weightGradients, moecclStream_t stream) {
  return moeccl::on<HeldPass>("moecclPassCombineBackward", pass, [&](const HeldPass& held) {
    moeccl::RoutePass& it = held.getForGradients();
    moeccl::Communicator& communicator = held.communicator();
    const std::size_t row = held.shape().combineRowBytes();
    const bool weighs = held.shape().weighs();
    if (!weighs)
      moeccl::requireNone({rows, weightGradients},
                          "rows and weightGradients must be NULL: with this config.weights Combine "
                          "multiplies by no weights");
    const NamedBuffer from{"outputGradients", outputGradients, held.tokenBytes(row)},
        kept{"rows", rows, weighs ? held.rowsBytes(row) : 0},
        to{"rowGradients", rowGradients, held.rowsBytes(row)},
        ofWeights{"weightGradients", weightGradients, weighs ? held.choicesBytes() : 0};
    moeccl::requireRoom({from, kept, to, ofWeights});
    moeccl::requireAlignedOnGpu(held, {from, kept, to});
    if (communicator.device()) moeccl::requireAligned(ofWeights.name, ofWeights.at, sizeof(float));
    moeccl::requireStream(communicator, stream);
    moeccl::orRevoke(communicator, [&] {
      it.combineBackward(communicator, outputGradients, rows, rowGradients, weightGradients,
                         stream);
    });
  });
}

moecclResult_t moecclPassDispatchBackward(moecclRoutePass_t pass, const void* rowGradients,
                                          const float* rowWeightGradients, void* tokenGradients,
                                          float* weightGradients, moecclStream_t stream) {
  return moeccl::on<HeldPass>("moecclPassDispatchBackward", pass, [&](const HeldPass& held) {
    moeccl::RoutePass& it = held.getForGradients();
    moeccl::Communicator& communicator = held.communicator();
    const std::size_t row = held.shape().combineRowBytes();
    const bool travel = held.shape().weights == moecclRouteWeightsRows;
    const auto perRow =
        static_cast<std::size_t>(held.shape().rowsByToken ? held.shape().choices : 1);
    if (!travel)
      moeccl::requireNone({rowWeightGradients, weightGradients},
                          "rowWeightGradients and weightGradients must be NULL unless "
                          "config.weights is moecclRouteWeightsRows");
    const NamedBuffer from{"rowGradients", rowGradients, held.rowsBytes(row)},
        to{"tokenGradients", tokenGradients, held.tokenBytes(row)},
        ofRows{"rowWeightGradients", rowWeightGradients,
               travel ? held.rowsBytes(perRow * sizeof(float)) : 0},
        ofChoices{"weightGradients", weightGradients, travel ? held.choicesBytes() : 0};
    moeccl::requireRoom({from, to, ofRows, ofChoices});
    moeccl::requireAlignedOnGpu(held, {from, to});
    moeccl::requireStream(communicator, stream);
    moeccl::orRevoke(communicator, [&] {
      it.combine(communicator, rowGradients, tokenGradients, false, stream);
      if (travel) it.returnWeights(communicator, rowWeightGradients, weightGradients, stream);
    });
  });
}
