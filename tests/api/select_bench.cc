// What asking for a schedule costs: a table to read. First: of a grid, cold: a layer that nobody
// has asked about yet, repeated: the same layer again. With a profile that has everything measured,
// and without any.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "moeccl/model.h"
#include "tests/api/profiles.h"

namespace moeccl::test {
namespace {

constexpr int kQuestions = 64;

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

double microseconds(std::chrono::steady_clock::duration passed) {
  return std::chrono::duration<double, std::micro>(passed).count();
}

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<long>(values.size() / 2));
  return values[values.size() / 2];
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

void ask(moecclComm_t comm, moecclGrid_t grid, moecclGridShape_t shape, const char* what) {
  moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
  cluster.grid = grid;
  moecclMoeConfig_t layer = MOECCL_MOE_CONFIG_INITIALIZER;
  layer.embedding = 1024;
  layer.hidden = 4096;
  layer.topK = 1;
  layer.capacityFactor = 1.2;
  moecclQuery_t query = MOECCL_QUERY_INITIALIZER;
  query.cluster = &cluster;
  query.layer = &layer;
  query.pass = moecclPassBoth;
  const auto askAbout = [&](std::int64_t tokens) {
    layer.tokens = tokens;
    layer.experts = shape.nEp * (1 + tokens % 3);
    const auto begin = std::chrono::steady_clock::now();
    moecclChoices_t choices = nullptr;
    moecclChoice_t first = MOECCL_CHOICE_INITIALIZER;
    check(moecclSelect(&query, &choices, nullptr));
    check(moecclChoicesGet(choices, 0, -1, &first));
    check(moecclChoicesDestroy(choices));
    return microseconds(std::chrono::steady_clock::now() - begin);
  };
  const double first = askAbout(1);
  std::vector<double> cold, repeated;
  for (int i = 0; i < kQuestions; ++i) cold.push_back(askAbout(100 + i));
  for (int i = 0; i < 10 * kQuestions; ++i) repeated.push_back(askAbout(100));
  int rank = 0;
  check(moecclCommUserRank(comm, &rank));
  if (rank == 0)
    std::printf(
        "N_MP %d N_EP %d N_ESP %d, %s profile: first %.1f us, cold %.2f us, repeated %.3f us\n",
        shape.nMp, shape.nEp, shape.nEsp, what, first, median(cold), median(repeated));
}

void measure(moecclComm_t comm, moecclGridShape_t shape) {
  moecclGrid_t grid = makeGrid(comm, shape);
  ask(comm, grid, shape, "without a");
  moecclProfile_t profile = profileOf(comm, grid);
  check(moecclCommSetProfile(comm, profile), comm);
  check(moecclGridDestroy(grid));
  grid = makeGrid(comm, shape);
  ask(comm, grid, shape, "with a");
  check(moecclProfileDestroy(profile));
  check(moecclGridDestroy(grid));
}

}  // namespace
}  // namespace moeccl::test

int main() {
  using namespace moeccl::test;
  for (const moecclGridShape_t& shape : {moecclGridShape_t{2, 4, 2, moecclOrderEspEp},
                                         {4, 2, 4, moecclOrderEspEp},
                                         {4, 8, 4, moecclOrderEspEp}})
    runJob({.ranks = shape.nEp * shape.nEsp,
            .nodes = std::vector<int>(static_cast<std::size_t>(shape.nEp * shape.nEsp / 4), 4),
            .algorithms = {}},
           [&](moecclComm_t comm, int) { measure(comm, shape); });
}
