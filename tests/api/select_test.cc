// What is chosen by profiles, and without, through the public API.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "tests/api/profiles.h"

namespace moeccl::test {
namespace {

// A layer of one rank, which takes a second forward.
void addLocalWork(moecclComm_t comm, moecclProfile_t profile) {
  int rank = 0;
  check(moecclCommUserRank(comm, &rank), comm);
  moecclComm_t alone = nullptr;
  check(moecclCommSplit(comm, rank, 0, &alone, nullptr), comm);
  moecclGrid_t grid = gridOn(alone, {1, 1, 1, moecclOrderEspEp});
  moecclMoeConfig_t config = layerConfig();
  config.schedule = moecclScheduleS1;
  moecclMoeLayer_t layer = nullptr;
  check(moecclMoeLayerCreate(grid, &config, &layer));
  moecclLayerSample_t sample = MOECCL_LAYER_SAMPLE_INITIALIZER;
  sample.layer = layer;
  sample.seconds = 1;
  check(moecclProfileAddLayer(profile, &sample));
  check(moecclMoeLayerDestroy(layer));
  check(moecclGridDestroy(grid));
  check(moecclCommDestroy(alone));
}

TEST(Select, ASchedulesTimeIsTheSumOfItsParts) {
  runJob(kJob, [](moecclComm_t comm, int) {
    moecclGrid_t grid = gridOn(comm);
    moecclProfile_t profile = profileOn(comm, grid, 1.5);
    check(moecclCommSetProfile(comm, profile), comm);
    const auto choices = schedules(grid, layerConfig());
    checkThat(choices.size() == 3, "PPMoE has an MP group that does not hold all experts");
    const auto s1 = choiceOf(choices, moecclScheduleS1), s2 = choiceOf(choices, moecclScheduleS2);
    checkThat(std::abs(s1.communication - 4.0) < 1e-6, "S1 " + std::to_string(s1.communication));
    checkThat(std::abs(s2.communication - 6.0) < 1e-6, "S2 " + std::to_string(s2.communication));
    checkThat(s1.seconds > s1.communication, "no local work");
    checkThat(std::string(s1.exchanges) ==
                  "dispatch: flat, combine: dedup, MP-AllGather: ring, MP-AllGather of the gate's "
                  "sums: ring",
              s1.exchanges);
    // The baseline is priced, in microseconds; what is measured by hand is not.
    checkThat(choices[0].schedule == moecclScheduleBaseline && !choices[0].measured, "baseline");
    moecclMoeConfig_t wide = layerConfig();
    wide.datatype = moecclFloat64;
    const auto wideS1 = choiceOf(schedules(grid, wide), moecclScheduleS1);
    const double ratio = (wideS1.seconds - wideS1.communication) / (s1.seconds - s1.communication);
    checkThat(std::abs(ratio - 2) < 1e-6, "local work is " + std::to_string(ratio));
    checkThat(wideS1.bytesBetween > 1.9 * s1.bytesBetween, "bytes between nodes");
    check(moecclProfileDestroy(profile));
    check(moecclGridDestroy(grid));
  });
}

// Whole layers that took longer than their parts make predictions longer, of their schedule alone.
TEST(Select, WholeLayersCount) {
  runJob(kJob, [](moecclComm_t comm, int) {
    moecclGrid_t grid = gridOn(comm);
    moecclProfile_t profile = profileOn(comm, grid, 1.5);
    addLocalWork(comm, profile);
    check(moecclProfileFit(profile));
    check(moecclCommSetProfile(comm, profile), comm);
    const auto before = schedules(grid, layerConfig());

    moecclMoeConfig_t config = layerConfig();
    config.schedule = moecclScheduleS1;
    config.training = 1;
    moecclMoeLayer_t layer = nullptr;
    check(moecclMoeLayerCreate(grid, &config, &layer));
    moecclLayerSample_t sample = MOECCL_LAYER_SAMPLE_INITIALIZER;
    sample.layer = layer;
    sample.seconds = 2 * choiceOf(before, moecclScheduleS1).seconds;
    for (int i = 0; i < 8; ++i) check(moecclProfileAddLayer(profile, &sample));
    check(moecclProfileFit(profile));
    check(moecclCommSetProfile(comm, profile), comm);
    const auto after = schedules(grid, layerConfig());
    const auto ratio = [&](moecclSchedule_t schedule) {
      return choiceOf(after, schedule).seconds / choiceOf(before, schedule).seconds;
    };
    checkThat(std::abs(ratio(moecclScheduleS1) - 2) < 0.1,
              "S1 " + std::to_string(ratio(moecclScheduleS1)));
    checkThat(ratio(moecclScheduleS2) == 1, "S2 " + std::to_string(ratio(moecclScheduleS2)));
    check(moecclMoeLayerDestroy(layer));
    check(moecclProfileDestroy(profile));
    check(moecclGridDestroy(grid));
  });
}

// S1 is cut in as many chunks as were measured to be the fastest, never in what nobody measured.
TEST(Select, ChunksAreChosen) {
  runJob(kJob, [](moecclComm_t comm, int) {
    moecclGrid_t grid = gridOn(comm);
    moecclProfile_t profile = profileOn(comm, grid, 1.5);
    addLocalWork(comm, profile);
    moecclMoeConfig_t config = layerConfig();
    config.schedule = moecclScheduleS1;
    config.capacityGroups = 8;
    const auto chunksOf = [&](std::int64_t chunks) {
      config.chunks = chunks;
      moecclMoeLayer_t layer = nullptr;
      check(moecclMoeLayerCreate(grid, &config, &layer));
      moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
      check(moecclMoeLayerGetShapes(layer, &shapes));
      const auto choices = schedules(grid, config);
      checkThat(choices.size() == 1 && choices[0].chunks == shapes.chunks, "another choice");
      if (profile != nullptr)
        for (int i = 0; i < 8; ++i) {
          moecclLayerSample_t sample = MOECCL_LAYER_SAMPLE_INITIALIZER;
          sample.layer = layer;
          sample.seconds = shapes.chunks == 2 ? 2 : 9;
          check(moecclProfileAddLayer(profile, &sample));
        }
      check(moecclMoeLayerDestroy(layer));
      return shapes.chunks;
    };
    for (const std::int64_t chunks : {1, 2, 4})
      checkThat(chunksOf(chunks) == chunks, "not what was asked for");
    check(moecclProfileFit(profile));
    check(moecclCommSetProfile(comm, profile), comm);
    check(moecclProfileDestroy(profile));
    profile = nullptr;
    checkThat(chunksOf(0) == 2, "not the fastest");
    checkThat(chunksOf(1) == 1, "not what was asked for");
    config.capacityGroups = 6;
    checkThat(chunksOf(0) == 1, "2 does not divide 3");
    config.chunks = 2;
    config.schedule = moecclScheduleAuto;
    moecclMoeLayer_t layer = nullptr;
    checkError(moecclMoeLayerCreate(grid, &config, &layer), moecclInvalidArgument, nullptr,
               {"config.chunks is 2", "divide capacityGroups / nMp, 3"});
    check(moecclGridDestroy(grid));
  });
}

TEST(Select, LayersFollowTheProfile) {
  for (const double ratio : {0.6, 1.5})
    runJob(kJob, [&](moecclComm_t comm, int) {
      moecclGrid_t grid = gridOn(comm);
      moecclProfile_t profile = profileOn(comm, grid, ratio);
      moecclComm_t ep = nullptr, esp = nullptr;
      check(moecclGridGetComm(grid, moecclGroupEp, &ep));
      check(moecclGridGetComm(grid, moecclGroupEsp, &esp));
      addLine(profile, {"alltoall", "linear", 100, 0}, ep, nullptr);
      addLine(profile, {"allreduce", "ring", 100, 0}, esp, nullptr);
      check(moecclProfileFit(profile));
      check(moecclCommSetProfile(comm, profile), comm);
      const moecclMoeConfig_t config = layerConfig();
      moecclMoeLayer_t layer = nullptr;
      check(moecclMoeLayerCreate(grid, &config, &layer));
      moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
      check(moecclMoeLayerGetShapes(layer, &shapes));
      checkThat(shapes.schedule == (ratio < 1 ? moecclScheduleS2 : moecclScheduleS1),
                "schedule " + std::to_string(shapes.schedule));
      check(moecclMoeLayerDestroy(layer));
      check(moecclProfileDestroy(profile));
      check(moecclGridDestroy(grid));
    });
}

// Each rank asks for itself; they must agree, whatever the groups they are in.
TEST(Select, AllRanksAnswerAlike) {
  runJob({.ranks = 6, .nodes = {4, 2}, .algorithms = {}}, [](moecclComm_t comm, int) {
    moecclGrid_t grid = gridOn(comm, {2, 2, 3, moecclOrderEpEsp});
    moecclMoeConfig_t layer = layerConfig();
    layer.hidden = 36;
    for (layer.tokens = 1; layer.tokens < 100000; layer.tokens *= 7) {
      const auto mine = schedules(grid, layer);
      std::vector<moecclScheduleChoice_t> all(mine.size() * 6);
      check(moecclAllGather(mine.data(), all.data(), mine.size() * sizeof mine[0], moecclUint8,
                            comm, nullptr));
      for (std::size_t i = 0; i < all.size(); ++i)
        checkThat(std::memcmp(&all[i], &mine[i % mine.size()], sizeof mine[0]) == 0, "differ");
    }
    check(moecclGridDestroy(grid));
  });
}

TEST(Select, ParmsRules) {
  runJob(kJob, [](moecclComm_t comm, int) {
    moecclGrid_t grid = gridOn(comm);
    moecclProfile_t profile = nullptr;
    check(moecclProfileCreate(comm, &profile), comm);
    moecclComm_t mp = nullptr;
    check(moecclGridGetComm(grid, moecclGroupMp, &mp));
    addLine(profile, {"allgather", "ring", 3, 1e-3}, mp, nullptr);
    addLine(profile, {"dispatch", "flat", 5, 2e-3}, nullptr, grid);
    addLine(profile, {"combineallgather", "sequential", 7, 4e-3}, nullptr, grid);
    check(moecclProfileFit(profile));
    check(moecclCommSetProfile(comm, profile), comm);
    // x = 64 * 16 elements; y = k f x N_ESP = 4096. N_MP = N_ESP = 2.
    const double gather = 3 + 1e-3 * 512 * 4, exchange = 5 + 2e-3 * 1024 * 4;
    const auto near = [](double a, double b) {
      checkThat(std::abs(a - b) < 1e-5 * b, std::to_string(a) + " not " + std::to_string(b));
    };
    const auto corrected = schedules(grid, layerConfig(), moecclRuleCorrected);
    checkThat(corrected.size() == 2, "S1 and S2");
    near(choiceOf(corrected, moecclScheduleS1).seconds, 2 * exchange + gather);
    near(choiceOf(corrected, moecclScheduleS2).seconds, exchange + 7 + 4e-3 * 2048 * 4);
    // As published, y is M = 16 times as large, and all of it is in the overlapped AlltoAll.
    const auto published = schedules(grid, layerConfig(), moecclRuleParm);
    const double large = 5 + 2e-3 * 1024 * 16 * 4;
    near(choiceOf(published, moecclScheduleS1).seconds, 2 * large + gather);
    near(choiceOf(published, moecclScheduleS2).seconds, large + 7 + 4e-3 * 4096 * 16 * 4);
    moecclMoeConfig_t config = layerConfig();
    config.schedule = moecclScheduleBaseline;
    moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
    cluster.grid = grid;
    moecclScheduleQuery_t query = MOECCL_SCHEDULE_QUERY_INITIALIZER;
    query.cluster = &cluster;
    query.layer = &config;
    query.rule = moecclRuleParm;
    int count = 0;
    checkError(moecclSelectSchedule(&query, nullptr, &count), moecclInvalidArgument, nullptr,
               {"query.rule is 1", "fixed to baseline", "between S1 and S2"});
    check(moecclProfileDestroy(profile));
    check(moecclGridDestroy(grid));
  });
}

TEST(Select, DroplessLayersArePricedByTheMeanAndHaveNoS2) {
  runJob(kJob, [](moecclComm_t comm, int) {
    moecclGrid_t grid = gridOn(comm);
    moecclMoeConfig_t config = layerConfig();
    const auto full = schedules(grid, config);
    config.dropless = 1;
    config.capacityFactor = 0;
    const auto choices = schedules(grid, config);
    checkThat(choices.size() == 2 && full.size() == 3, "other alternatives than baseline and S1");
    for (const moecclScheduleChoice_t& choice : choices) {
      checkThat(choice.schedule != moecclScheduleS2, "S2 without a capacity");
      checkThat(choice.seconds > choice.communication && choice.communication > 0, "no time");
      checkThat(std::strstr(choice.exchanges, "EP-AlltoAllv to the experts: linear") != nullptr,
                choice.exchanges);
    }
    // k times as many rows take longer, and only these change.
    config.topK = 4;
    checkThat(choiceOf(schedules(grid, config), moecclScheduleS1).seconds >
                  choiceOf(choices, moecclScheduleS1).seconds,
              "more choices in the same time");
    for (const auto rule : {moecclRuleParm, moecclRuleCorrected}) {
      moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
      cluster.grid = grid;
      moecclScheduleQuery_t query = MOECCL_SCHEDULE_QUERY_INITIALIZER;
      query.cluster = &cluster;
      query.layer = &config;
      query.rule = rule;
      int none = 0;
      checkError(moecclSelectSchedule(&query, nullptr, &none), moecclInvalidArgument, nullptr,
                 {"query.rule is", "moecclRuleModel for a dropless layer"});
    }
    check(moecclGridDestroy(grid));
  });
}

TEST(Select, TheResidualBranchTakesTimeUnderEverySchedule) {
  runJob(kJob, [](moecclComm_t comm, int) {
    moecclGrid_t grid = gridOn(comm);
    moecclMoeConfig_t config = layerConfig();
    const auto without = schedules(grid, config);
    config.residual = 64;
    for (const moecclScheduleChoice_t& choice : schedules(grid, config)) {
      const moecclScheduleChoice_t before = choiceOf(without, choice.schedule);
      checkThat(choice.seconds > before.seconds, "no time");
      // S1 gathers parts anyway.
      checkThat(
          (choice.communication > before.communication) == (choice.schedule != moecclScheduleS1),
          "communication");
    }
    check(moecclGridDestroy(grid));
  });
}

TEST(Select, CollectivesFollowTheProfileAndSplitsInheritIt) {
  runJob(kJob, [](moecclComm_t comm, int rank) {
    moecclProfile_t profile = nullptr;
    check(moecclProfileCreate(comm, &profile), comm);
    addLine(profile, {"alltoall", "bruck:radix=4", 1e-3, 0}, comm, nullptr);
    addLine(profile, {"alltoall", "linear", 2e-3, 0}, comm, nullptr);
    check(moecclProfileFit(profile));
    check(moecclCommSetProfile(comm, profile), comm);
    check(moecclProfileDestroy(profile));
    moecclComm_t same = nullptr;
    check(moecclCommSplit(comm, 0, rank, &same, nullptr), comm);
    for (moecclComm_t one : {comm, same}) {
      moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
      cluster.comm = one;
      moecclAlgorithmChoice_t choices[8];
      int count = 8;
      check(moecclSelectAlgorithm(&cluster, "alltoall", 4096, 1, choices, &count));
      checkThat(count == 2, std::to_string(count) + " choices");
      checkThat(std::string(choices[0].algorithm) == "bruck:radix=4", choices[0].algorithm);
      checkThat(choices[0].measured == 1 && std::abs(choices[0].seconds - 1e-3) < 1e-9, "time");
      std::vector<int> in(4 * 256, rank), out(4 * 256);
      check(moecclAllToAll(in.data(), out.data(), 256, moecclInt32, one, nullptr), one);
      for (int i = 0; i < 4 * 256; ++i)
        checkThat(out[static_cast<std::size_t>(i)] == i / 256, "data");
    }
    check(moecclCommDestroy(same));
    check(moecclCommSetProfile(comm, nullptr), comm);
    moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
    cluster.comm = comm;
    int count = 0;
    check(moecclSelectAlgorithm(&cluster, "alltoall", 4096, 1, nullptr, &count));
    checkThat(count > 4, "without a profile all algorithms are priced");
  });
}

// However an algorithm is told, it is the same.
TEST(Select, SamplesAreFoundUnderTheUsualNames) {
  runJob(kJob, [](moecclComm_t comm, int) {
    moecclProfile_t profile = nullptr;
    check(moecclProfileCreate(comm, &profile), comm);
    addLine(profile, {"alltoall", "bruck:window=16,radix=4", 1e-3, 0}, comm, nullptr);
    check(moecclProfileFit(profile));
    check(moecclCommSetProfile(comm, profile), comm);
    check(moecclProfileDestroy(profile));
    moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
    cluster.comm = comm;
    moecclAlgorithmChoice_t choice;
    int count = 1;
    check(moecclSelectAlgorithm(&cluster, "alltoall", 4096, 1, &choice, &count));
    checkThat(count == 1 && choice.measured == 1, "the sample was not found");
    checkThat(std::string(choice.algorithm) == "bruck:radix=4", choice.algorithm);
  });
}

// Groups of a grid share their nodes' uplinks, and choose by that what the layer was priced with.
TEST(Select, GroupsDoWhatLayersArePricedBy) {
  runJob({.ranks = 8, .nodes = {4, 4}, .algorithms = {}}, [](moecclComm_t comm, int) {
    moecclGrid_t grid = gridOn(comm, {1, 4, 2, moecclOrderEspEp});
    moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
    check(moecclGridGetComm(grid, moecclGroupEp, &cluster.comm));
    moecclMoeConfig_t layer = layerConfig();
    for (layer.tokens = 8; layer.tokens <= 1 << 16; layer.tokens *= 2) {
      moecclAlgorithmChoice_t choice;
      int count = 1;
      // All places are taken.
      const auto bytes = static_cast<std::size_t>(layer.topK * layer.tokens * layer.embedding) * 4;
      check(moecclSelectAlgorithm(&cluster, "alltoall", bytes, 1, &choice, &count));
      const std::string exchanges =
          choiceOf(schedules(grid, layer), moecclScheduleBaseline).exchanges;
      checkThat(exchanges.ends_with(std::string("second EP-AlltoAll: ") + choice.algorithm),
                exchanges + " against " + choice.algorithm);
    }
    check(moecclGridDestroy(grid));
  });
}

TEST(Select, ASchedulesClusterHasAGrid) {
  runJob(kJob, [](moecclComm_t comm, int) {
    moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
    cluster.comm = comm;
    cluster.shape = kShape;
    const moecclMoeConfig_t layer = layerConfig();
    moecclScheduleQuery_t query = MOECCL_SCHEDULE_QUERY_INITIALIZER;
    query.cluster = &cluster;
    query.layer = &layer;
    int count = 0;
    std::size_t bytes = 0;
    for (const moecclResult_t result : {moecclSelectSchedule(&query, nullptr, &count),
                                        moecclExplainSchedule(&query, nullptr, &bytes)})
      checkError(result, moecclInvalidArgument, nullptr, {"cluster.comm has no grid"});
  });
}

TEST(Select, ClustersThatDoNotExist) {
  const int nodes[] = {8, 8, 8, 4};
  moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
  cluster.nNodes = 4;
  cluster.ranksPerNode = nodes;
  cluster.shape = {4, 7, 4, moecclOrderEspEp};
  moecclMoeConfig_t layer = layerConfig();
  layer.tokens = 4096;
  layer.embedding = 1024;
  layer.hidden = 4096;
  layer.experts = 7;
  moecclScheduleQuery_t query = MOECCL_SCHEDULE_QUERY_INITIALIZER;
  query.cluster = &cluster;
  query.layer = &layer;
  query.pass = moecclPassBoth;
  moecclScheduleChoice_t choices[4];
  int count = 4;
  check(moecclSelectSchedule(&query, choices, &count));
  EXPECT_EQ(count, 3);
  EXPECT_NE(choices[0].schedule, moecclScheduleBaseline);
  EXPECT_EQ(choices[2].schedule, moecclScheduleBaseline);

  size_t bytes = 0;
  check(moecclExplainSchedule(&query, nullptr, &bytes));
  std::string text(bytes, '\0');
  check(moecclExplainSchedule(&query, text.data(), &bytes));
  for (const char* part : {"baseline", "S1", "S2", "MP-AllGather", "dedup", "ms", "priced"})
    EXPECT_NE(text.find(part), text.npos) << part << " is not in:\n" << text;
  char cut[10];
  bytes = sizeof cut;
  check(moecclExplainSchedule(&query, cut, &bytes));
  EXPECT_EQ(std::strlen(cut), 9u);
  EXPECT_EQ(bytes, text.size());
}

}  // namespace
}  // namespace moeccl::test
