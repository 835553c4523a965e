// Makes and ends grids. The MP, EP and ESP groups of a grid are communicators that moecclCommSplit
// makes.
#include <array>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "moeccl/moeccl.h"
#include "src/api/arguments.h"
#include "src/api/handles.h"
#include "src/comm/agreement.h"

namespace {

using moeccl::Error;

void check(const moecclGridShape_t& shape, int ranks) {
  const auto positive = [](const char* name, int value) {
    if (value < 1)
      throw Error(moecclInvalidArgument, std::string("shape.") + name + " is " +
                                             std::to_string(value) +
                                             "; a group has at least one rank");
  };
  positive("nMp", shape.nMp);
  positive("nEp", shape.nEp);
  positive("nEsp", shape.nEsp);
  if (static_cast<long long>(shape.nEp) * shape.nEsp != ranks)
    throw Error(moecclInvalidArgument, "shape.nEp * shape.nEsp is " + std::to_string(shape.nEp) +
                                           " * " + std::to_string(shape.nEsp) +
                                           "; it must be the number of ranks, " +
                                           std::to_string(ranks));
  if (ranks % shape.nMp != 0)
    throw Error(moecclInvalidArgument, "shape.nMp is " + std::to_string(shape.nMp) +
                                           "; it must divide the number of ranks, " +
                                           std::to_string(ranks));
  if (shape.order < 0 || shape.order >= moecclNumOrders)
    throw Error(moecclInvalidArgument, "shape.order is " +
                                           std::to_string(static_cast<int>(shape.order)) +
                                           "; it must be moecclOrderEspEp or moecclOrderEpEsp");
}

void requireSameShape(moeccl::Communicator& communicator, const moecclGridShape_t& shape) {
  constexpr const char* kNames[] = {"nMp", "nEp", "nEsp", "order"};
  constexpr const char* kOrders[] = {"moecclOrderEspEp", "moecclOrderEpEsp"};
  static_assert(std::size(kOrders) == moecclNumOrders);
  const std::array<std::int64_t, 4> mine = {shape.nMp, shape.nEp, shape.nEsp, shape.order};
  moeccl::requireSameValues(
      communicator, mine, [&](std::size_t place) { return std::string("shape.") + kNames[place]; },
      [&](std::size_t place, std::int64_t value) {
        return kNames[place] == std::string_view("order") ? moeccl::nameAt(kOrders, value)
                                                          : std::to_string(value);
      },
      "shapes");
}

moecclComm_t split(moecclComm_t comm, int color, int key) {
  moecclComm_t group = nullptr;
  const moecclResult_t result = moecclCommSplit(comm, color, key, &group, nullptr);
  if (result != moecclSuccess) throw Error(result, moecclGetLastError(comm));
  return group;
}

}  // namespace

moecclResult_t moecclGrid::leaveGroups(moecclResult_t (*leave)(moecclComm_t)) {
  moecclResult_t result = moecclSuccess;
  for (int group : {moecclGroupMp, moecclGroupEp, moecclGroupEsp}) {
    const moecclResult_t one = leave(std::exchange(comms[group], nullptr));
    if (result == moecclSuccess) result = one;
  }
  return result;
}

moecclResult_t moecclGridCreate(moecclComm_t comm, moecclGridShape_t shape, moecclGrid_t* grid) {
  const auto state = moeccl::hold(comm);
  return moeccl::boundary("moecclGridCreate", moeccl::lastErrorOf(state), [&] {
    moeccl::Communicator& world = moeccl::communicatorOf(state);
    // Ranks whose arguments are wrong by themselves still take part, so that nobody waits for them.
    moeccl::CommunicatorOob oob(world);
    moeccl::agreeAfter(oob, [&] {
      moeccl::require(grid != nullptr, "grid is NULL; pass where to store the grid");
    });
    requireSameShape(world, shape);
    check(shape, world.ranks());
    const int rank = world.rank();
    const bool espFirst = shape.order == moecclOrderEspEp;
    const int ep = espFirst ? rank / shape.nEsp : rank % shape.nEp;
    const int esp = espFirst ? rank % shape.nEsp : rank / shape.nEp;
    auto made = std::make_unique<moecclGrid>();
    made->shape = shape;
    made->comms[moecclGroupWorld] = comm;
    made->comms[moecclGroupMp] = split(comm, rank / shape.nMp, rank);
    made->comms[moecclGroupEp] = split(comm, esp, ep);
    made->comms[moecclGroupEsp] = split(comm, ep, esp);
    for (const int group : {moecclGroupMp, moecclGroupEp, moecclGroupEsp})
      moeccl::communicatorOf(moeccl::hold(made->comms[group])).dependOn(world);
    moeccl::addHandle(moeccl::HandleKind::grid, made.get());
    *grid = made.release();
  });
}

namespace {

moecclResult_t leaveGrid(const char* function, moecclGrid_t grid,
                         moecclResult_t (*leave)(moecclComm_t)) {
  if (grid == nullptr) return moecclSuccess;
  const moeccl::KnownHandle known = moeccl::removeHandle(moeccl::HandleKind::grid, grid);
  const moecclResult_t result = moeccl::boundary(
      function, nullptr, [&] { moeccl::requireLive(moeccl::HandleKind::grid, known.state); });
  if (result != moecclSuccess) return result;
  const std::unique_ptr<moecclGrid> freed(grid);
  return grid->leaveGroups(leave);
}

}  // namespace

moecclResult_t moecclGridDestroy(moecclGrid_t grid) {
  if (grid == nullptr) return moecclSuccess;
  // All groups are checked before any is destroyed.
  const moecclResult_t unused = moeccl::boundary("moecclGridDestroy", nullptr, [&] {
    for (int group : {moecclGroupMp, moecclGroupEp, moecclGroupEsp})
      if (moecclComm_t ranks = moeccl::gridOf(grid).comms[group]; ranks != nullptr)
        moeccl::communicatorOf(moeccl::hold(ranks)).requireUnused();
  });
  if (unused != moecclSuccess) return unused;
  return leaveGrid("moecclGridDestroy", grid, moecclCommDestroy);
}

moecclResult_t moecclGridAbort(moecclGrid_t grid) {
  return leaveGrid("moecclGridAbort", grid, moecclCommAbort);
}

moecclResult_t moecclGridGetShape(moecclGrid_t grid, moecclGridShape_t* shape) {
  return moeccl::boundary("moecclGridGetShape", nullptr, [&] {
    const moecclGrid& it = moeccl::gridOf(grid);
    moeccl::require(shape != nullptr, "shape is NULL; pass where to store it");
    *shape = it.shape;
  });
}

moecclResult_t moecclGridGetComm(moecclGrid_t grid, moecclGroup_t group, moecclComm_t* comm) {
  return moeccl::boundary("moecclGridGetComm", nullptr, [&] {
    const moecclGrid& it = moeccl::gridOf(grid);
    moeccl::require(comm != nullptr, "comm is NULL; pass where to store it");
    if (group < 0 || group >= moecclNumGroups)
      throw Error(moecclInvalidArgument, "group is " + std::to_string(static_cast<int>(group)) +
                                             "; it must be one of moecclGroup_t");
    *comm = it.comms[group];
  });
}
