// What moecclRoute_t and moecclRoutePass_t point to. A route keeps passes that have ended, and what
// they have of memory, for those that begin: so a handle of a pass is made once, and may be open or
// not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "src/route/route_pass.h"
#include "src/route/route_schedules.h"

struct moecclRoutePass {
  std::shared_ptr<moecclRoute> route;  // while it is open
  std::shared_ptr<moeccl::RoutePass> pass;
  // [localExperts][ranks], of rows by token [ranks], as they were last asked for.
  std::vector<std::int64_t> counts;
};

struct moecclRoute : std::enable_shared_from_this<moecclRoute> {
  // With a pass that has ended, so that the first to begin needs no memory. `of`: the grid's.
  // schedulesOfAll: of a route that has such.
  moecclRoute(moecclComm_t of, moeccl::Communicator& communicator, moeccl::RouteShape shapeOfAll,
              const moeccl::RoutePrices& pricesOfAll,
              std::unique_ptr<moeccl::RouteSchedules> schedulesOfAll);
  ~moecclRoute();
  moecclRoute(const moecclRoute&) = delete;
  moecclRoute& operator=(const moecclRoute&) = delete;

  // An open pass, whose begin() is to come.
  moecclRoutePass* open(moeccl::Communicator& communicator);
  // Any thread may end a pass. The last one of a route that is destroyed ends that too.
  static void end(moecclRoutePass& pass);

  // The most rows that a pass can bring; -1: any number.
  std::int64_t maxRows() const {
    return shape.latency ? passes_[0]->pass->roomForRows() : shape.maxRows > 0 ? shape.maxRows : -1;
  }
  // The loads of all passes, as RoutePass says.
  std::vector<std::int64_t> loads(moeccl::Communicator& communicator) const;
  void forgetLoads(moeccl::Communicator& communicator);

  const moecclComm_t comm;
  const moeccl::RouteShape shape;
  const moeccl::RoutePrices prices;
  const std::unique_ptr<moeccl::RouteSchedules> schedules;
  const int rank;
  // The experts and weights that Begin was given, on the host; a weight has
  // RouteShape::weightBytes.
  std::vector<std::int32_t> experts;
  std::vector<std::byte> weights;
  const char* lastAlgorithm = nullptr;  // of the last Begin

 private:
  moecclRoutePass* make(moeccl::Communicator& communicator);

  const int ranks_;
  std::vector<std::unique_ptr<moecclRoutePass>> passes_;
  std::mutex mutex_;
  std::vector<moecclRoutePass*> ended_;
};
