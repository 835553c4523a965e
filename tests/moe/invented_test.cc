// A schedule that is one file and one line (invented.cc, meson.build): it is verified, mirrored,
// run, priced, explained, and chosen where it is the fastest, by a library that knows nothing of
// it.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "src/verify/verify_schedule.h"
#include "tests/api/profiles.h"
#include "tests/moe/learn.h"
#include "tests/moe/on_layer.h"
#include "tests/schedules/layers.h"
#include "tests/schedules/support.h"

namespace moeccl::test {
namespace {

constexpr auto kInvented = static_cast<moecclSchedule_t>(moecclNumSchedules);
const char* const kName = "invented";

TEST(Invented, IsInTheList) {
  EXPECT_STREQ(moecclScheduleName(kInvented), kName);
  EXPECT_EQ(moecclScheduleName(static_cast<moecclSchedule_t>(kInvented + 1)), nullptr);
}

TEST(Invented, IsVerifiedWithItsMirror) {
  const schedules::Entry& entry = *schedules::find(kName);
  std::mt19937 random(1);
  int layers = 0;
  for (const schedules::Options& options : schedules::everyOption()) {
    schedules::Schedule forward, backward;
    try {
      forward = scheduleOf(entry, Pass::forward, options);
      backward = scheduleOf(entry, Pass::backward, options);
    } catch (const NotOffered&) {
      continue;
    }
    for (const Grid& grid : schedules::gridsUpTo(6)) {
      if (!schedules::applies(forward, grid)) continue;
      ++layers;
      const auto wrong = verify(forward, backward, schedules::randomLayer(forward, grid, random));
      ASSERT_TRUE(wrong.empty()) << wrong[0] << ": N_MP " << grid.mp << " N_EP " << grid.ep
                                 << " N_ESP " << grid.esp << ", dropless " << options.dropless
                                 << ", chunks " << options.chunks;
    }
  }
  EXPECT_GT(layers, 100);
}

std::vector<Problem> problems() {
  std::vector<Problem> all;
  for (const moecclGridShape_t& grid : {moecclGridShape_t{2, 2, 3, moecclOrderEspEp},
                                        {2, 3, 2, moecclOrderEpEsp},
                                        {1, 4, 1, moecclOrderEspEp},
                                        {3, 1, 3, moecclOrderEspEp},
                                        {1, 1, 1, moecclOrderEspEp}})
    for (const std::int64_t tokens : {0, 1, 19}) {
      Problem& problem = all.emplace_back(Problem{.name = "invented"});
      problem.grid = grid;
      problem.tokens = tokens;
      problem.experts = 6 * grid.nEp;
      problem.hidden = 6;
      problem.residual = tokens == 1 ? 5 : 0;
      all.emplace_back(problem).dropless = true;
    }
  return all;
}

TEST(Invented, RunsAndLearns) {
  for (const Problem& problem : problems()) {
    SCOPED_TRACE(problem.text());
    runLayer(problem, solve(problem), {.schedule = kInvented});
    learn(taskOf(problem), {.schedule = kInvented});
    if (HasFailure()) return;
  }
}

TEST(Invented, RunsInChunks) {
  Problem problem = six("chunks of an invented schedule");
  problem.capacityGroups = 8;
  problem.chunks = 2;
  learn(taskOf(problem), {.schedule = kInvented, .ownStream = true});
}

// On 2 nodes of 4 ranks, where dispatch and combine take `dispatch` seconds, and what the invented
// schedule does instead `others`.
void choose(double dispatch, double others, moecclSchedule_t expected) {
  runJob(kJob, [&](moecclComm_t comm, int) {
    moecclGrid_t grid = gridOn(comm);
    moecclComm_t groups[moecclNumGroups];
    for (int group = 0; group < moecclNumGroups; ++group)
      check(moecclGridGetComm(grid, static_cast<moecclGroup_t>(group), &groups[group]));
    moecclProfile_t profile = nullptr;
    check(moecclProfileCreate(comm, &profile), comm);
    for (const char* name : {"dispatch", "combine", "splitdispatch"})
      addLine(profile, {name, "flat", dispatch, 0}, nullptr, grid);
    addLine(profile, {"combineallgather", "sequential", dispatch, 0}, nullptr, grid);
    addLine(profile, {"alltoall", "linear", others, 0}, groups[moecclGroupEp], nullptr);
    addLine(profile, {"allgather", "ring", others, 0}, groups[moecclGroupEsp], nullptr);
    addLine(profile, {"reducescatter", "ring", others, 0}, groups[moecclGroupEsp], nullptr);
    addLine(profile, {"allgather", "ring", 0.1, 0}, groups[moecclGroupMp], nullptr);
    addLine(profile, {"allreduce", "ring", 100, 0}, groups[moecclGroupEsp], nullptr);
    check(moecclProfileFit(profile));
    check(moecclCommSetProfile(comm, profile), comm);
    moecclMoeConfig_t config = layerConfig();
    const std::vector<Choice> choices = schedules(grid, config);
    checkThat(choices[0].schedule == expected, choices[0].exchanges);
    const Choice invented = choiceOf(choices, kInvented);
    checkThat(invented.exchanges.find("EP-AlltoAll there: linear") != std::string::npos,
              invented.exchanges);
    moecclMoeLayer_t layer = nullptr;
    check(moecclMoeLayerCreate(grid, &config, &layer));
    moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
    check(moecclMoeLayerGetShapes(layer, &shapes));
    checkThat(shapes.schedule == expected, "schedule " + std::to_string(shapes.schedule));
    check(moecclMoeLayerDestroy(layer));
    check(moecclProfileDestroy(profile));
    check(moecclGridDestroy(grid));
  });
}

TEST(Invented, IsChosenWhereItIsTheFastest) {
  choose(5, 0.1, kInvented);
  choose(0.1, 5, moecclScheduleS2);
}

TEST(Invented, IsExplained) {
  const int nodes[] = {4, 4};
  moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
  cluster.nNodes = 2;
  cluster.ranksPerNode = nodes;
  cluster.shape = {2, 4, 2, moecclOrderEspEp};
  moecclMoeConfig_t config = layerConfig();
  config.schedule = kInvented;
  moecclQuery_t query = MOECCL_QUERY_INITIALIZER;
  query.cluster = &cluster;
  query.layer = &config;
  query.pass = moecclPassBoth;
  std::string text(1 << 16, '\0');
  size_t bytes = text.size();
  check(moecclExplain(&query, nullptr, text.data(), &bytes));
  for (const char* part : {"invented ", "exchange \"EP-AlltoAll there\"", "reducescatter of ESP",
                           "experts backward: ", "made by shard"})
    EXPECT_NE(text.find(part), text.npos) << part << " is not in:\n" << text.c_str();
}

}  // namespace
}  // namespace moeccl::test
