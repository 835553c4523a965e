// What asking for a schedule costs, by Google Benchmark: the first question of a grid; cold: of a
// layer that nobody has asked about yet; repeated: of the same layer again. With a profile that has
// everything measured, and without any.
#include <benchmark/benchmark.h>

#include <latch>
#include <string>
#include <vector>

#include "moeccl/model.h"
#include "tests/api/profiles.h"

namespace moeccl::test {
namespace {

constexpr int kQuestions = 64;
enum class Ask { first, cold, repeated };

// Samples of every way of a collective that the library offers.
void addAll(moecclProfile_t profile, const char* collective, moecclComm_t comm, moecclGrid_t grid) {
  moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
  cluster.comm = comm;
  cluster.grid = grid;
  double rank = 0;
  for (const Algorithm& one : algorithmsFor(cluster, collective, 4096)) {
    ++rank;
    for (std::size_t bytes = 256; bytes <= std::size_t{1} << 22; bytes *= 4) {
      moecclCollectiveSample_t sample = MOECCL_COLLECTIVE_SAMPLE_INITIALIZER;
      sample.collective = collective;
      sample.algorithm = one.algorithm.c_str();
      sample.comm = comm;
      sample.grid = grid;
      sample.bytes = bytes;
      sample.seconds = 1e-4 * rank + 1e-8 / rank * static_cast<double>(bytes);
      check(moecclProfileAddCollective(profile, &sample));
    }
  }
}

// A profile of all that layers on the grid need.
moecclProfile_t profileOf(moecclComm_t comm, moecclGrid_t grid) {
  moecclProfile_t profile = nullptr;
  check(moecclProfileCreate(comm, &profile), comm);
  for (const auto group : {moecclGroupMp, moecclGroupEp, moecclGroupEsp}) {
    moecclComm_t ranks = nullptr;
    check(moecclGridGetComm(grid, group, &ranks));
    int count = 0;
    check(moecclCommCount(ranks, &count));
    if (count == 1) continue;
    for (const char* collective : {"alltoall", "allgather", "allreduce", "reducescatter"})
      addAll(profile, collective, ranks, nullptr);
  }
  for (const char* collective : {"dispatch", "combine", "splitdispatch", "combineallgather"})
    addAll(profile, collective, nullptr, grid);
  check(moecclProfileFit(profile));
  return profile;
}

void ask(moecclGrid_t grid, moecclGridShape_t shape, std::int64_t tokens) {
  moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
  cluster.grid = grid;
  moecclMoeConfig_t layer = MOECCL_MOE_CONFIG_INITIALIZER;
  layer.tokens = tokens;
  layer.embedding = 1024;
  layer.hidden = 4096;
  layer.experts = shape.nEp * (1 + tokens % 3);
  layer.topK = 1;
  layer.capacityFactor = 1.2;
  moecclQuery_t query = MOECCL_QUERY_INITIALIZER;
  query.cluster = &cluster;
  query.layer = &layer;
  query.pass = moecclPassBoth;
  moecclChoices_t choices = nullptr;
  moecclChoice_t first = MOECCL_CHOICE_INITIALIZER;
  check(moecclSelect(&query, &choices, nullptr));
  check(moecclChoicesGet(choices, 0, -1, &first));
  check(moecclChoicesDestroy(choices));
}

// Rank 0 asks; the others make the grid, which is collective, and wait.
void select(benchmark::State& state, moecclGridShape_t shape, bool profiled, Ask what) {
  std::latch over(1);
  const auto measure = [&](moecclComm_t comm, int rank) {
    moecclGrid_t grid = makeGrid(comm, shape);
    moecclProfile_t profile = nullptr;
    if (profiled) {
      profile = profileOf(comm, grid);
      check(moecclCommSetProfile(comm, profile), comm);
      check(moecclGridDestroy(grid));
      grid = makeGrid(comm, shape);
    }
    if (rank == 0) {
      if (what != Ask::first) ask(grid, shape, 1);
      if (what == Ask::repeated) ask(grid, shape, 100);
      std::int64_t tokens = 100;
      for (auto _ : state) ask(grid, shape, what == Ask::cold ? tokens++ : 100);
      over.count_down();
    }
    over.wait();
    check(moecclProfileDestroy(profile));
    check(moecclGridDestroy(grid));
  };
  const int ranks = shape.nEp * shape.nEsp;
  runJob({.ranks = ranks,
          .nodes = std::vector<int>(static_cast<std::size_t>(ranks / 4), 4),
          .algorithms = {}},
         measure);
}

void registerAll() {
  for (const moecclGridShape_t& shape : {moecclGridShape_t{2, 4, 2, moecclOrderEspEp},
                                         {4, 2, 4, moecclOrderEspEp},
                                         {4, 8, 4, moecclOrderEspEp}})
    for (const bool profiled : {false, true})
      for (const auto& [name, what] :
           {std::pair("first", Ask::first), {"cold", Ask::cold}, {"repeated", Ask::repeated}}) {
        const auto number = [](int value) { return std::to_string(value); };
        const std::string of = std::string(name) + ", grid " + number(shape.nMp) + "x" +
                               number(shape.nEp) + "x" + number(shape.nEsp) +
                               (profiled ? ", a profile" : ", no profile");
        auto* const made =
            benchmark::RegisterBenchmark(of.c_str(), select, shape, profiled, what)->UseRealTime();
        if (what != Ask::repeated) made->Iterations(what == Ask::first ? 1 : kQuestions);
      }
}

}  // namespace
}  // namespace moeccl::test

int main(int argc, char** argv) {
  moeccl::test::registerAll();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
}
