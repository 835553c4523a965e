// The collectives of a grid through the public API, under every algorithm: tables of backends,
// grids, placements, types and sizes.
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "tests/api/exercise.h"
#include "tests/api/ranks.h"

namespace moeccl::test {
namespace {

// One algorithm of every collective of a grid; together they are all.
constexpr const char* kAlgorithms[] = {
    "tpalltoall=sliced;dispatch=dedup;combine=dedup;combineallgather=pipelined;splitdispatch=dedup",
    "tpalltoall=direct;dispatch=flat;combine=flat;combineallgather=sequential;splitdispatch=flat",
    "dispatch=hierarchical;combine=hierarchical;combineallgather=hierarchical;"
    "splitdispatch=hierarchical",
    "dispatch=bruck;combine=bruck;combineallgather=bruck;splitdispatch=bruck"};
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

struct Backend {
  const char* name;
  bool processes, ucx;
};
constexpr Backend kBackends[] = {
    {"loopback", false, false}, {"ucxThreads", false, true}, {"processes", true, false}};

// A line of a table: what is run of every collective of a grid, with each of its algorithms.
struct Line {
  Backend backend;
  moecclGridShape_t shape;
  std::vector<int> nodes;
  bool typesAndSizes;
};

std::string nameOfLine(const Line& line) {
  std::string name = line.backend.name;
  name += "_mp" + std::to_string(line.shape.nMp) + "_ep" + std::to_string(line.shape.nEp) + "_esp" +
          std::to_string(line.shape.nEsp) +
          (line.shape.order == moecclOrderEspEp ? "" : "_epFirst") + "_on";
  for (int size : line.nodes) name += "_" + std::to_string(size);
  return name + (line.typesAndSizes ? "_everyType" : "");
}

// What --gtest_list_tests says of it.
void PrintTo(const Line& line, std::ostream* out) {
  for (const char* algorithms : kAlgorithms) *out << algorithms << "; ";
  *out << "over " << line.backend.name << ", ranks per node";
  for (int size : line.nodes) *out << ' ' << size;
  *out << ", " << (line.typesAndSizes ? "every type by sum; " : "")
       << (line.typesAndSizes ? "counts 0 1 5 13 4096 20011" : "float32 and float16, counts 13 0");
}

constexpr moecclGridOrder_t kEsp = moecclOrderEspEp, kEp = moecclOrderEpEsp;

// Sizes and types know nothing of nodes: all of them on one placement, whose MP groups cross ESP
// groups and nodes.
std::vector<Line> typesAndSizes() {
  std::vector<Line> table;
  for (const Backend& backend : kBackends)
    table.push_back({backend, {2, 2, 3, kEsp}, {1, 5}, true});
  return table;
}

// Grids and placements know nothing of types.
std::vector<Line> placements() {
  std::vector<Line> table;
  const std::pair<moecclGridShape_t, std::vector<int>> grids[] = {
      {{1, 1, 1, kEsp}, {1}},                      // one rank
      {{1, 3, 1, kEsp}, {2, 1}},                   // nothing but EP
      {{3, 1, 3, kEsp}, {1, 1, 1}},                // nothing but ESP; MP groups of all
      {{2, 2, 2, kEsp}, {2, 2}},                   // a node holds an ESP group
      {{2, 2, 2, kEp}, {2, 2}},                    // a node holds an EP group
      {{4, 2, 4, kEsp}, {4, 4}},                   // MP groups are ESP groups and nodes
      {{2, 4, 2, kEp}, {4, 4}},                    // EP groups are nodes
      {{4, 4, 2, kEsp}, {1, 4, 3}},                // nodes cut all groups
      {{8, 2, 4, kEp}, {1, 1, 1, 1, 1, 1, 1, 1}},  // a rank to a node
      {{1, 4, 3, kEp}, {12}},                      // one node
      {{3, 3, 4, kEsp}, {4, 4, 4}},                // MP groups cross nodes
      {{4, 8, 2, kEsp}, {1, 8, 7}}};               // many
  for (const auto& [shape, nodes] : grids) table.push_back({kBackends[0], shape, nodes, false});
  for (const Backend& backend : kBackends)
    if (backend.processes || backend.ucx)
      table.push_back({backend, {4, 4, 2, kEsp}, {4, 4}, false});
  return table;
}

// One node; nodes that hold whole ESP groups, or EP groups, or the reverse; cut anywhere; one rank
// each.
std::vector<std::vector<int>> placementsOf(int ranks, int ep, int esp) {
  std::vector<std::vector<int>> all = {{ranks}};
  if (esp > 1 && ep > 1) {
    all.push_back(std::vector<int>(ep, esp));
    if (ep != esp) all.push_back(std::vector<int>(esp, ep));
  }
  if (ranks > 4) all.push_back({1, ranks / 2, ranks - ranks / 2 - 1});
  if (ranks > 1 && ranks <= 12) all.push_back(std::vector<int>(ranks, 1));
  return all;
}

// Every grid of groups of 1, 2, 3, 4 and 8 ranks in every placement, and types and sizes on
// several.
std::vector<Line> product() {
  std::vector<Line> table;
  for (int ep : {1, 2, 3, 4, 8})
    for (int esp : {1, 2, 3, 4, 8})
      for (const std::vector<int>& nodes : placementsOf(ep * esp, ep, esp))
        for (int mp : {1, 2, 3, 4, 8})
          for (moecclGridOrder_t order : {kEsp, kEp})
            if (ep * esp % mp == 0)
              table.push_back({kBackends[0], {mp, ep, esp, order}, nodes, false});
  for (const Backend& backend : kBackends)
    for (const auto& [shape, nodes] :
         {std::pair<moecclGridShape_t, std::vector<int>>{{1, 1, 1, kEsp}, {1}},
          {{2, 2, 2, kEsp}, {2, 2}},
          {{2, 2, 4, kEsp}, {4, 4}},
          {{4, 4, 2, kEsp}, {4, 4}},
          {{2, 4, 2, kEp}, {4, 4}},
          {{3, 3, 2, kEsp}, {2, 4}},
          {{1, 2, 3, kEsp}, {1, 1, 1, 3}},
          {{5, 5, 1, kEsp}, {3, 2}}})
      table.push_back({backend, shape, nodes, true});
  return table;
}

void call(const Line& line, moecclComm_t comm, moecclGrid_t grid) {
  Exercise what{.experts = 1 + (line.shape.nMp + line.shape.nEp) % 3};
  for (Collective collective : kCollectivesOfGrids) {
    what.collective = collective;
    const auto one = [&](size_t count, moecclDataType_t type) {
      what.count = count;
      what.datatype = type;
      ++what.salt;
      exercise(what, comm, grid, nullptr);
    };
    one(13, moecclFloat32);
    one(0, moecclFloat16);
    if (!line.typesAndSizes) continue;
    for (int type = 0; type < moecclNumTypes; ++type) one(5, static_cast<moecclDataType_t>(type));
    one(1, moecclBfloat16);
    one(20011, moecclInt8);
    one(4096, moecclFloat64);
  }
}

class EveryAlgorithm : public testing::TestWithParam<Line> {};

TEST_P(EveryAlgorithm, KeepsItsPromise) {
  const Line& line = GetParam();
  const Job job{.ranks = line.shape.nEp * line.shape.nEsp,
                .nodes = line.nodes,
                .algorithms = {},
                .processes = line.backend.processes,
                .ucx = line.backend.ucx};
  runJob(job, [&](moecclComm_t comm, int) {
    for (const char* algorithms : kAlgorithms) {
      moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
      config.algorithms = algorithms;
      config.timeoutMs = job.timeoutMs;
      moecclComm_t world = nullptr;
      check(moecclCommSplit(comm, 0, 0, &world, &config), comm);
      moecclGrid_t grid = makeGrid(world, line.shape);
      call(line, world, grid);
      check(moecclGridDestroy(grid), world);
      check(moecclCommDestroy(world));
    }
  });
}

const auto nameOfCase = [](const auto& info) { return nameOfLine(info.param); };
INSTANTIATE_TEST_SUITE_P(TypesAndSizes, EveryAlgorithm, testing::ValuesIn(typesAndSizes()),
                         nameOfCase);
INSTANTIATE_TEST_SUITE_P(Placements, EveryAlgorithm, testing::ValuesIn(placements()), nameOfCase);
INSTANTIATE_TEST_SUITE_P(Slow, EveryAlgorithm, testing::ValuesIn(product()), nameOfCase);

}  // namespace
}  // namespace moeccl::test
