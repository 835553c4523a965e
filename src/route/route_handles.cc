// Makes passes of a route, hands out those that have ended again, and adds up the loads of all. An
// open pass keeps its route alive.
#include "src/route/route_handles.h"

#include <algorithm>
#include <utility>

#include "src/base/live_handles.h"

moecclRoute::moecclRoute(moecclComm_t of, moeccl::Communicator& communicator,
                         moeccl::RouteShape shapeOfAll, const moeccl::RoutePrices& pricesOfAll,
                         std::unique_ptr<moeccl::RouteSchedules> schedulesOfAll)
    : comm(of),
      shape(std::move(shapeOfAll)),
      prices(pricesOfAll),
      schedules(std::move(schedulesOfAll)),
      rank(communicator.rank()),
      ranks_(communicator.ranks()) {
  ended_.push_back(make(communicator));
  if (!shape.latency) return;
  // So that no Begin allocates.
  const auto most = static_cast<std::size_t>(shape.maxTokens * shape.choices);
  experts.reserve(most);
  weights.reserve(most * shape.weightBytes());
}

moecclRoute::~moecclRoute() {
  for (const auto& pass : passes_) moeccl::removeHandle(moeccl::HandleKind::routePass, pass.get());
}

moecclRoutePass* moecclRoute::make(moeccl::Communicator& communicator) {
  auto made = std::make_unique<moecclRoutePass>();
  made->pass = moeccl::RoutePass::make(communicator, shape, prices, schedules.get());
  const int lists = shape.rowsByToken ? 1 : shape.localExperts(rank);
  made->counts.resize(static_cast<std::size_t>(lists) * static_cast<std::size_t>(ranks_));
  const std::lock_guard lock(mutex_);
  ended_.reserve(passes_.size() + 1);  // so that no pass fails to end
  passes_.push_back(std::move(made));
  moeccl::addHandle(moeccl::HandleKind::routePass, passes_.back().get());
  return passes_.back().get();
}

moecclRoutePass* moecclRoute::open(moeccl::Communicator& communicator) {
  moecclRoutePass* pass = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (!ended_.empty()) {
      pass = ended_.back();
      ended_.pop_back();
    }
  }
  if (pass == nullptr) pass = make(communicator);
  pass->route = shared_from_this();
  return pass;
}

void moecclRoute::end(moecclRoutePass& pass) {
  const std::shared_ptr<moecclRoute> route = std::move(pass.route);
  const std::lock_guard lock(route->mutex_);
  route->ended_.push_back(&pass);
}

std::vector<std::int64_t> moecclRoute::loads(moeccl::Communicator& communicator) const {
  std::vector<std::int64_t> all(static_cast<std::size_t>(shape.experts.count) + 1, 0);
  for (const auto& each : passes_) {
    const std::vector<std::int64_t> its = each->pass->loads(communicator);
    std::ranges::transform(all, its, all.begin(), std::plus());
  }
  return all;
}

void moecclRoute::forgetLoads(moeccl::Communicator& communicator) {
  for (const auto& each : passes_) each->pass->forgetLoads(communicator);
}
