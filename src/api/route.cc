// Routes: makes and ends them, and answers what is asked of them.
#include "moeccl/route.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/api/arguments.h"
#include "src/api/held_route.h"
#include "src/api/questions.h"
#include "src/api/route_config.h"
#include "src/base/structs.h"
#include "src/bootstrap/oob.h"
#include "src/comm/agreement.h"

namespace moeccl {
namespace {

constexpr StructKind<moecclRouteInfo_t> kRouteInfo = {
    "info", "MOECCL_ROUTE_INFO_INITIALIZER", MOECCL_ROUTE_INFO_MAGIC,
    MOECCL_END_OF(moecclRouteInfo_t, maxRows), MOECCL_END_OF(moecclRouteInfo_t, maxRows)};

RouteSchedules& schedulesOf(moecclRoute& route) {
  if (route.schedules == nullptr)
    throw Error(moecclInvalidUsage,
                "the route has no schedule: it is dropless, shares no tokens, and config.schedule "
                "names none");
  return *route.schedules;
}

}  // namespace
}  // namespace moeccl

using moeccl::HeldRoute;

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
