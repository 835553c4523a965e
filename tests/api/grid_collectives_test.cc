// The collectives of a grid through the public API: groups of 1, 2, 3, 4 and 8 ranks in every
// combination, both orders, in every placement, under every algorithm.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/api/exercise.h"
#include "tests/api/ranks.h"
#include "tests/sanitized.h"

namespace moeccl::test {
namespace {

// One algorithm of every collective of a grid; together they are all.
constexpr const char* kAlgorithms[] = {
    "tpalltoall=sliced;dispatch=dedup;combine=dedup;combineallgather=pipelined;splitdispatch=dedup",
    "tpalltoall=direct;dispatch=flat;combine=flat;combineallgather=sequential;splitdispatch=flat"};
constexpr Collective kCollectivesOfGrids[] = {Collective::tpAllToAll, Collective::dispatch,
                                              Collective::combine, Collective::combineAllGather,
                                              Collective::splitDispatch};

TEST(GridAlgorithms, AreAllTested) {
  std::string all;
  for (const char* some : kAlgorithms) all += std::string(some) + ";";
  for (const Algorithm& algorithm : algorithms()) {
    if (!needsGrid(algorithm.collective)) continue;
    const std::string entry =
        std::string(nameOf(algorithm.collective)) + "=" + std::string(algorithm.name) + ";";
    EXPECT_NE(all.find(entry), std::string::npos) << entry;
  }
}

void exerciseGrid(moecclComm_t comm, const moecclGridShape_t& shape, bool thorough) {
  for (const char* algorithms : kAlgorithms) {
    moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
    config.algorithms = algorithms;
    config.timeoutMs = 60000;
    moecclComm_t world = nullptr;
    moecclGrid_t grid = nullptr;
    check(moecclCommSplit(comm, 0, 0, &world, &config), comm);
    check(moecclGridCreate(world, shape, &grid), world);
    Exercise what{.experts = 1 + (shape.nMp + shape.nEp) % 3};
    for (Collective collective : kCollectivesOfGrids) {
      what.collective = collective;
      const auto call = [&](size_t count, moecclDataType_t type) {
        what.count = count;
        what.datatype = type;
        ++what.salt;
        exercise(what, world, grid, nullptr);
      };
      call(13, moecclFloat32);
      call(0, moecclFloat16);
      if (!thorough) continue;
      for (int type = 0; type < moecclNumTypes; ++type)
        call(5, static_cast<moecclDataType_t>(type));
      call(1, moecclBfloat16);
      call(20011, moecclInt8);
      call(4096, moecclFloat64);
    }
    check(moecclGridDestroy(grid), world);
    check(moecclCommDestroy(world));
  }
}

// One node; nodes that hold whole ESP groups, or EP groups, or the reverse; cut anywhere; one rank each.
std::vector<std::vector<int>> placements(int ranks, int ep, int esp) {
  std::vector<std::vector<int>> all = {{ranks}};
  if (esp > 1 && ep > 1) {
    all.push_back(std::vector<int>(ep, esp));
    if (ep != esp) all.push_back(std::vector<int>(esp, ep));
  }
  if (ranks > 4) all.push_back({1, ranks / 2, ranks - ranks / 2 - 1});
  if (ranks > 1 && ranks <= 12) all.push_back(std::vector<int>(ranks, 1));
  return all;
}

TEST(Grids, EveryShapeAndPlacement) {
  for (int ep : {1, 2, 3, 4, 8})
    for (int esp : {1, 2, 3, 4, 8}) {
      if (kSanitized && ep * esp > 8) continue;
      for (const std::vector<int>& nodes : placements(ep * esp, ep, esp)) {
        Job job{.ranks = ep * esp, .nodes = nodes, .algorithms = {}};
        runJob(job, [&](moecclComm_t comm, int) {
          for (int mp : {1, 2, 3, 4, 8})
            for (moecclGridOrder_t order : {moecclOrderEspEp, moecclOrderEpEsp})
              if (job.ranks % mp == 0) exerciseGrid(comm, {mp, ep, esp, order}, false);
        });
        if (HasFailure()) return;
      }
    }
}

struct Backend {
  const char* name;
  bool processes, ucx;
};

class GridBackends : public testing::TestWithParam<Backend> {};

TEST_P(GridBackends, EveryTypeAndSize) {
  const std::vector<std::pair<moecclGridShape_t, std::vector<int>>> jobs = {
      {{1, 1, 1, moecclOrderEspEp}, {1}},          {{2, 2, 2, moecclOrderEspEp}, {2, 2}},
      {{2, 2, 4, moecclOrderEspEp}, {4, 4}},       {{4, 4, 2, moecclOrderEspEp}, {4, 4}},
      {{2, 4, 2, moecclOrderEpEsp}, {4, 4}},       {{3, 3, 2, moecclOrderEspEp}, {2, 4}},
      {{1, 2, 3, moecclOrderEspEp}, {1, 1, 1, 3}}, {{5, 5, 1, moecclOrderEspEp}, {3, 2}}};
  for (const auto& [shape, nodes] : jobs) {
    Job job{.ranks = shape.nEp * shape.nEsp,
            .nodes = nodes,
            .algorithms = {},
            .processes = GetParam().processes,
            .ucx = GetParam().ucx};
    runJob(job, [&shape = shape](moecclComm_t comm, int) { exerciseGrid(comm, shape, true); });
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, GridBackends,
                         testing::Values(Backend{"loopback", false, false},
                                         Backend{"ucxThreads", false, true},
                                         Backend{"ucxProcesses", true, true}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace moeccl::test
