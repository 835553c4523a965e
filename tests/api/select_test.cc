// What is chosen by profiles, and without, through the public API.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/api/profiles.h"

namespace moeccl::test {
namespace {

// A layer of one rank, which takes so long forward.
void addLocalWork(moecclComm_t comm, moecclProfile_t profile, double seconds = 1) {
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
  sample.seconds = seconds;
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
    checkThat(s1.exchanges ==
                  "dispatch: flat, combine: dedup, MP-AllGather: ring, MP-AllGather of the gate's "
                  "sums: ring",
              s1.exchanges);
    // The baseline is priced, in microseconds; what is measured by hand is not.
    checkThat(choices[0].schedule == moecclScheduleBaseline && !isMeasured(choices[0]), "baseline");
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

// What a rank computes by itself is as was measured, and what it exchanges stays.
TEST(Select, LocalWorkCounts) {
  runJob(kJob, [](moecclComm_t comm, int) {
    moecclGrid_t grid = gridOn(comm);
    moecclProfile_t profile = profileOn(comm, grid, 1.5);
    const auto s1With = [&](double seconds) {
      addLocalWork(comm, profile, seconds);
      check(moecclProfileFit(profile));
      check(moecclCommSetProfile(comm, profile), comm);
      return choiceOf(schedules(grid, layerConfig()), moecclScheduleS1);
    };
    const auto before = s1With(1), after = s1With(3);
    const auto local = [](const auto& choice) { return choice.seconds - choice.communication; };
    // Fits go through the mean of samples, by relative errors: of 1 and 3 this is 1.2.
    checkThat(std::abs(local(after) / local(before) - 1.2) < 0.01,
              "local work " + std::to_string(local(after) / local(before)));
    checkThat(after.communication == before.communication, "exchanges are the same");
    check(moecclProfileDestroy(profile));
    check(moecclGridDestroy(grid));
  });
}

// Layers are cut as they ask for it, or as is predicted to be the fastest. A progress thread
// exchanges while experts compute, so that more is hidden.
TEST(Select, ChunksAreChosen) {
  std::map<bool, double> seconds;
  for (const bool progressThread : {false, true})
    runJob({.ranks = 4, .nodes = {2, 2}, .algorithms = {}, .progressThread = progressThread},
           [&](moecclComm_t comm, int rank) {
             moecclGrid_t grid = gridOn(comm);
             moecclMoeConfig_t config = layerConfig();
             config.tokens = 4096;
             config.hidden = 256;
             config.schedule = moecclScheduleS1;
             config.capacityGroups = 8;
             const auto chosen = [&](std::int64_t chunks) {
               config.chunks = chunks;
               moecclMoeLayer_t layer = nullptr;
               check(moecclMoeLayerCreate(grid, &config, &layer));
               moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
               check(moecclMoeLayerGetShapes(layer, &shapes));
               const auto choices = schedules(grid, config);
               checkThat(choices.size() == 1 && choices[0].chunks == shapes.chunks,
                         "another choice");
               check(moecclMoeLayerDestroy(layer));
               return choices[0];
             };
             for (const std::int64_t chunks : {1, 2, 4})
               checkThat(chosen(chunks).chunks == chunks, "not what was asked for");
             const double predicted = chosen(2).seconds;
             if (rank == 0) seconds[progressThread] = predicted;
             if (progressThread) checkThat(chosen(0).chunks > 1, "not the fastest");
             config.capacityGroups = 6;
             checkThat(chosen(0).chunks == 1, "2 does not divide 3");
             config.chunks = 2;
             config.schedule = moecclScheduleAuto;
             moecclMoeLayer_t layer = nullptr;
             checkError(moecclMoeLayerCreate(grid, &config, &layer), moecclInvalidArgument, nullptr,
                        {"config.chunks is 2", "divide capacityGroups / nMp, 3"});
             config.embedding = 512;
             config.hidden = 1024;
             config.dropless = 1;
             config.capacityFactor = 0;
             config.capacityGroups = 0;
             for (const moecclSchedule_t schedule : {moecclScheduleBaseline, moecclScheduleS1})
               for (const std::int64_t tokenRouting : {-1, 1}) {
                 config.schedule = schedule;
                 config.tokenRouting = tokenRouting;
                 const Choice whole = chosen(1);
                 for (const std::int64_t chunks : {3, 4}) {
                   const Choice cut = chosen(chunks);
                   checkThat(cut.chunks == chunks, "not what was asked for");
                   checkThat(std::abs(cut.bytesBetween / whole.bytesBetween - 1) < 1e-2,
                             "other bytes than without chunks");
                 }
                 const auto all = {whole.seconds, chosen(2).seconds, chosen(4).seconds,
                                   chosen(8).seconds};
                 checkThat(chosen(0).seconds == std::min(all), "not the fastest without capacity");
                 if (progressThread) checkThat(chosen(0).chunks > 1, "whole without capacity");
               }
             check(moecclGridDestroy(grid));
           });
  EXPECT_LT(seconds[true], seconds[false]);
}

// By what their exchanges hide behind.
TEST(Select, ChunksArePriced) {
  const int nodes[] = {8, 8};
  for (const moecclLinks_t links : {moecclLinksHost, moecclLinksNvlink}) {
    moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
    cluster.nNodes = 2;
    cluster.ranksPerNode = nodes;
    cluster.shape = {2, 16, 1, moecclOrderEspEp};
    cluster.links = links;
    moecclMoeConfig_t layer = layerConfig();
    layer.tokens = 16384;
    layer.embedding = 4096;
    layer.hidden = 8192;
    layer.experts = 16;
    layer.schedule = moecclScheduleS1;
    layer.capacityGroups = 16;
    moecclQuery_t query = MOECCL_QUERY_INITIALIZER;
    query.cluster = &cluster;
    query.layer = &layer;
    std::map<std::int64_t, double> seconds;
    for (const std::int64_t chunks : {0, 1, 2, 4, 8}) {
      layer.chunks = chunks;
      const auto all = schedules(query);
      ASSERT_EQ(all.size(), 1u);
      EXPECT_TRUE(chunks == 0 || all[0].chunks == chunks) << all[0].chunks;
      seconds[chunks] = all[0].seconds;
    }
    EXPECT_EQ(seconds[0], std::min({seconds[1], seconds[2], seconds[4], seconds[8]}));
    // Experts hide most of what is exchanged beside them.
    if (links == moecclLinksNvlink) EXPECT_LT(seconds[0], 0.9 * seconds[1]);
  }
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
      std::vector<std::uint64_t> said;
      for (const Choice& choice : mine) {
        said.insert(said.end(), {static_cast<std::uint64_t>(choice.schedule),
                                 static_cast<std::uint64_t>(choice.chunks),
                                 std::bit_cast<std::uint64_t>(choice.seconds),
                                 std::bit_cast<std::uint64_t>(choice.communication)});
        said.insert(said.end(), choice.digests.begin(), choice.digests.end());
      }
      std::vector<std::uint64_t> all(said.size() * 6);
      check(moecclAllGather(said.data(), all.data(), said.size(), moecclUint64, comm, nullptr));
      for (std::size_t i = 0; i < all.size(); ++i)
        checkThat(all[i] == said[i % said.size()], "differ");
    }
    check(moecclGridDestroy(grid));
  });
}

// With MP groups of one rank S2 gathers nothing: its exchanges are S1's, and so are their plans.
// With several they are not.
TEST(Select, EqualDigestsAreEqualPlans) {
  runJob(kJob, [](moecclComm_t comm, int) {
    for (const int mp : {1, 2}) {
      moecclGrid_t grid = gridOn(comm, {mp, 2, 2, moecclOrderEspEp});
      const auto choices = schedules(grid, layerConfig());
      const Choice s1 = choiceOf(choices, moecclScheduleS1);
      const Choice s2 = choiceOf(choices, moecclScheduleS2);
      checkThat((s1.digests == s2.digests) == (mp == 1), s1.exchanges + " and " + s2.exchanges);
      checkThat(schedules(grid, layerConfig())[0].digests == choices[0].digests, "forgotten");
      check(moecclGridDestroy(grid));
    }
  });
  // Among two ranks a ring sends what all send to all.
  const int nodes[] = {1, 1, 1};
  moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
  cluster.ranksPerNode = nodes;
  for (cluster.nNodes = 2; cluster.nNodes <= 3; ++cluster.nNodes) {
    const auto all = algorithmsFor(cluster, "allgather", 4096);
    std::set<std::uint64_t> digests;
    for (const Algorithm& one : all) digests.insert(one.digest);
    EXPECT_EQ(digests.size(), all.size()) << "what does the same is there once";
  }
}

TEST(Select, ChoicesAreHandedOutOneByOne) {
  const int nodes[] = {2, 2};
  moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
  cluster.nNodes = 2;
  cluster.ranksPerNode = nodes;
  cluster.shape = kShape;
  const moecclMoeConfig_t layer = layerConfig();
  moecclQuery_t query = MOECCL_QUERY_INITIALIZER;
  query.cluster = &cluster;
  query.layer = &layer;
  query.pass = moecclPassBoth;
  moecclChoices_t choices = nullptr;
  int count = 0;
  check(moecclSelect(&query, &choices, &count));
  moecclChoice_t choice = MOECCL_CHOICE_INITIALIZER;
  check(moecclChoicesGet(choices, 0, -1, &choice));
  moecclChoice_t exchange = MOECCL_CHOICE_INITIALIZER;
  bool backward = false;
  for (int i = 0; i < choice.nExchanges; ++i) {
    check(moecclChoicesGet(choices, 0, i, &exchange));
    EXPECT_GE(exchange.pass == moecclPassBackward, backward) << "forward comes first";
    backward = exchange.pass == moecclPassBackward;
    EXPECT_TRUE(exchange.seconds > 0 && exchange.bytes > 0 && exchange.calls > 0);
    EXPECT_NE(exchange.digest, 0u);
    EXPECT_FALSE(isMeasured(exchange));
    cluster.comm = nullptr;
    const std::string collective = exchange.collective;
    if (exchange.group != moecclGroupWorld) continue;
    // As the collective by itself has it.
    const auto alone = algorithmsFor(cluster, collective.c_str(), exchange.bytes);
    EXPECT_EQ(alone[0].algorithm, exchange.name);
    EXPECT_EQ(alone[0].digest, exchange.digest);
    EXPECT_EQ(alone[0].seconds, exchange.seconds);
  }
  EXPECT_TRUE(backward);
  const auto refused = [](moecclResult_t result, const char* text) {
    checkError(result, moecclInvalidArgument, nullptr, {text});
  };
  refused(moecclChoicesGet(choices, count, -1, &choice), "index is 3; there are 3 choices");
  refused(moecclChoicesGet(choices, -1, -1, &choice), "index is -1");
  refused(moecclChoicesGet(choices, 0, -1, nullptr), "choice is NULL");
  refused(moecclChoicesGet(choices, 0, choice.nExchanges, &exchange), "exchange is ");
  refused(moecclChoicesGet(choices, 0, -2, &exchange), "exchange is -2");
  exchange.magic = 0;
  refused(moecclChoicesGet(choices, 0, 0, &exchange), "choice was not initialised");
  refused(moecclChoicesGet(nullptr, 0, -1, &choice), "choices is NULL");
  refused(moecclSelect(&query, nullptr, nullptr), "choices is NULL");
  check(moecclChoicesDestroy(choices));
  check(moecclChoicesDestroy(nullptr));

  query.collective = "alltoall";
  refused(moecclSelect(&query, &choices, nullptr), "query.collective and query.layer are both set");
  query.layer = nullptr;
  query.bytes = 4096;
  check(moecclSelect(&query, &choices, &count));
  refused(moecclChoicesGet(choices, 1000, -1, &choice), "index is 1000; there are");
  refused(moecclChoicesGet(choices, 0, 0, &choice), "exchange is 0; there are 0");
  check(moecclChoicesDestroy(choices));
  query.collective = "dispatch";
  query.nExpertsPerRank = 0;
  refused(moecclSelect(&query, &choices, nullptr), "query.nExpertsPerRank is 0");
  query.collective = "sort";
  refused(moecclSelect(&query, &choices, nullptr), "sort");
}

// The clusters are such as nobody has measured.
TEST(Select, AsksAboutClustersOfGpus) {
  const int nodes[] = {8, 8};
  moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
  cluster.nNodes = 2;
  cluster.ranksPerNode = nodes;
  const auto secondsOn = [&](moecclLinks_t links, int gbits, double bytes) {
    cluster.links = links;
    cluster.networkGbits = gbits;
    return algorithmsFor(cluster, "alltoall", bytes)[0].seconds;
  };
  constexpr double kBytes = 64e6;
  const double nvlink = secondsOn(moecclLinksNvlink, 0, kBytes);
  const double pcie = secondsOn(moecclLinksPcie, 0, kBytes);
  EXPECT_LT(nvlink, pcie);
  EXPECT_LT(pcie, secondsOn(moecclLinksHost, 0, kBytes));
  // A network of half the speed takes twice as long where there is nothing else.
  const double half = secondsOn(moecclLinksPcie, 50, kBytes);
  EXPECT_GT(half, 1.8 * secondsOn(moecclLinksPcie, 100, kBytes));
  EXPECT_GT(secondsOn(moecclLinksHost, 1, kBytes), 5 * secondsOn(moecclLinksHost, 10, kBytes));
  const auto hasNative = [&](moecclLinks_t links) {
    cluster.links = links;
    cluster.networkGbits = 0;
    const auto all = algorithmsFor(cluster, "allreduce", 4096);
    return std::ranges::count(all, "native", &Algorithm::algorithm);
  };
  EXPECT_EQ(hasNative(moecclLinksHost), 0);
  EXPECT_EQ(hasNative(moecclLinksNvlink), 1);
  EXPECT_EQ(hasNative(moecclLinksPcie), 1);
  // Schedules too.
  cluster.shape = {2, 4, 4, moecclOrderEspEp};
  const moecclMoeConfig_t layer = layerConfig();
  moecclQuery_t query = MOECCL_QUERY_INITIALIZER;
  query.cluster = &cluster;
  query.layer = &layer;
  const auto exchangesOn = [&](moecclLinks_t links) {
    cluster.links = links;
    moecclChoices_t choices = nullptr;
    check(moecclSelect(&query, &choices, nullptr));
    moecclChoice_t first = MOECCL_CHOICE_INITIALIZER;
    check(moecclChoicesGet(choices, 0, -1, &first));
    check(moecclChoicesDestroy(choices));
    return first.communication;
  };
  EXPECT_LT(exchangesOn(moecclLinksNvlink), exchangesOn(moecclLinksHost));
  // What ranks compute between exchanges, too.
  const auto workOn = [&](moecclLinks_t links, moecclDataType_t datatype) {
    cluster.links = links;
    moecclMoeConfig_t large = layer;
    large.datatype = datatype;
    large.tokens = 8192;
    large.embedding = 1024;
    large.hidden = 4096;
    query.layer = &large;
    moecclChoices_t choices = nullptr;
    check(moecclSelect(&query, &choices, nullptr));
    moecclChoice_t one = MOECCL_CHOICE_INITIALIZER;
    for (int i = 0; one.schedule != moecclScheduleS1; ++i)
      check(moecclChoicesGet(choices, i, -1, &one));
    check(moecclChoicesDestroy(choices));
    query.layer = &layer;
    return one.seconds - one.communication;
  };
  for (const moecclDataType_t datatype : {moecclFloat32, moecclBfloat16}) {
    EXPECT_LT(workOn(moecclLinksNvlink, datatype), workOn(moecclLinksPcie, datatype));
    EXPECT_LT(workOn(moecclLinksPcie, datatype), workOn(moecclLinksHost, datatype));
  }
  EXPECT_LT(workOn(moecclLinksPcie, moecclBfloat16), workOn(moecclLinksPcie, moecclFloat32));
  EXPECT_NEAR(workOn(moecclLinksHost, moecclBfloat16) / workOn(moecclLinksHost, moecclFloat32), 1,
              1e-9);
  const auto refused = [&](int links, int gbits, const char* text) {
    cluster.links = static_cast<moecclLinks_t>(links);
    cluster.networkGbits = gbits;
    moecclChoices_t none = nullptr;
    const moecclQuery_t asked = algorithmQuery(cluster, "alltoall", 1);
    checkError(moecclSelect(&asked, &none, nullptr), moecclInvalidArgument, nullptr, {text});
  };
  refused(3, 0, "cluster.links is 3; it must be moecclLinksHost (0)");
  refused(-1, 0, "cluster.links is -1");
  refused(1, -7, "cluster.networkGbits is -7");
}

TEST(Select, AsksAboutLeafSwitches) {
  const int nodes[] = {2, 2, 2, 2};
  moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
  cluster.nNodes = 4;
  cluster.ranksPerNode = nodes;
  cluster.shape = {2, 4, 2, moecclOrderEspEp};
  const auto secondsOn = [&](int nodesPerSwitch, double oversubscription) {
    cluster.nodesPerSwitch = nodesPerSwitch;
    cluster.oversubscription = oversubscription;
    return algorithmsFor(cluster, "alltoall", 64e6)[0].seconds;
  };
  const double one = secondsOn(0, 0);
  EXPECT_EQ(secondsOn(4, 8), one);
  EXPECT_EQ(secondsOn(2, 0), secondsOn(2, 1));
  EXPECT_GT(secondsOn(2, 8), 2 * one);
  // Schedules too; groups in a leaf cost what they cost.
  const moecclMoeConfig_t layer = layerConfig();
  moecclQuery_t query = MOECCL_QUERY_INITIALIZER;
  query.cluster = &cluster;
  query.layer = &layer;
  const auto slowest = [&](int nodesPerSwitch) {
    cluster.nodesPerSwitch = nodesPerSwitch;
    cluster.oversubscription = 64;
    return choiceOf(schedules(query), moecclScheduleS1).communication;
  };
  EXPECT_GT(slowest(2), slowest(4));
  const auto refused = [&](int nodesPerSwitch, double oversubscription, const char* text) {
    cluster.nodesPerSwitch = nodesPerSwitch;
    cluster.oversubscription = oversubscription;
    moecclChoices_t none = nullptr;
    const moecclQuery_t asked = algorithmQuery(cluster, "alltoall", 1);
    checkError(moecclSelect(&asked, &none, nullptr), moecclInvalidArgument, nullptr, {text});
  };
  refused(-2, 0, "cluster.nodesPerSwitch is -2");
  refused(2, 0.5, "cluster.oversubscription is 0.5; it must be at least 1");
  refused(2, NAN, "cluster.oversubscription is nan");
  refused(0, 4, "cluster.oversubscription is 4 and nodesPerSwitch is 0");
}

// What is measured on a line is told as that line.
TEST(Select, LinesAreAlphaAndBeta) {
  runJob(kJob, [](moecclComm_t comm, int) {
    moecclProfile_t profile = nullptr;
    check(moecclProfileCreate(comm, &profile), comm);
    addLine(profile, {"allgather", "ring", 3, 1e-3}, comm, nullptr);
    addLine(profile, {"allgather", "linear", 5, 2e-3}, comm, nullptr);
    check(moecclProfileFit(profile));
    check(moecclCommSetProfile(comm, profile), comm);
    check(moecclProfileDestroy(profile));
    moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
    cluster.comm = comm;
    for (const Algorithm& one : algorithmsFor(cluster, "allgather", 512)) {
      const bool ring = one.algorithm == "ring";
      checkThat(std::abs(one.alpha - (ring ? 3 : 5)) < 1e-4, std::to_string(one.alpha));
      checkThat(std::abs(one.beta - (ring ? 1e-3 : 2e-3)) < 1e-7, std::to_string(one.beta));
    }
  });
}

TEST(Select, DroplessLayersArePricedByTheMeanAndHaveNoS2) {
  runJob(kJob, [](moecclComm_t comm, int) {
    moecclGrid_t grid = gridOn(comm);
    moecclMoeConfig_t config = layerConfig();
    const auto full = schedules(grid, config);
    config.dropless = 1;
    config.capacityFactor = 0;
    config.tokenRouting = -1;
    const auto choices = schedules(grid, config);
    checkThat(choices.size() == 2 && full.size() == 3, "other alternatives than baseline and S1");
    for (const Choice& choice : choices) {
      checkThat(choice.schedule != moecclScheduleS2, "S2 without a capacity");
      checkThat(choice.seconds > choice.communication && choice.communication > 0, "no time");
      checkThat(choice.exchanges.find("EP-AlltoAllv to the experts: linear") != std::string::npos,
                choice.exchanges);
    }
    // k times as many rows take longer, and only these change.
    config.topK = 4;
    checkThat(choiceOf(schedules(grid, config), moecclScheduleS1).seconds >
                  choiceOf(choices, moecclScheduleS1).seconds,
              "more choices in the same time");
    check(moecclGridDestroy(grid));
  });
}

// Where tokens have several choices on several nodes, and rows are large, they cross once; else as
// all-to-all-v's bring them.
TEST(Select, TokenRoutingIsTakenWhereItSaves) {
  moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
  moecclMoeConfig_t layer = layerConfig();
  layer.tokens = 512;
  layer.embedding = 2048;
  layer.experts = 64;
  layer.dropless = 1;
  layer.capacityFactor = 0;
  layer.schedule = moecclScheduleS1;
  moecclQuery_t query = MOECCL_QUERY_INITIALIZER;
  query.cluster = &cluster;
  query.layer = &layer;
  query.pass = moecclPassBoth;
  const auto ask = [&](std::vector<int> nodes, std::int64_t topK, std::int64_t tokenRouting) {
    cluster.nNodes = static_cast<int>(nodes.size());
    cluster.ranksPerNode = nodes.data();
    cluster.networkGbits = 1;
    cluster.shape = {1, 8, 1, moecclOrderEspEp};
    layer.topK = topK;
    layer.tokenRouting = tokenRouting;
    const auto all = schedules(query);
    checkThat(all.size() == 1, "more than was asked for");
    return all[0];
  };
  const Choice routed = ask({4, 4}, 8, 0), rows = ask({4, 4}, 8, -1);
  EXPECT_EQ(routed.tokenRouting, 1);
  EXPECT_EQ(rows.tokenRouting, 0);
  // 1 row of each token instead of 4, both ways of both passes.
  EXPECT_NEAR(routed.bytesBetween / rows.bytesBetween, 0.25, 0.01);
  EXPECT_LT(routed.seconds, rows.seconds / 2);
  EXPECT_EQ(routed.seconds, ask({4, 4}, 8, 1).seconds);
  for (const char* part : {"token dispatch: node", "token combine: node"})
    EXPECT_NE(routed.exchanges.find(part), std::string::npos) << routed.exchanges;
  EXPECT_EQ(ask({4, 4}, 1, 0).tokenRouting, 0);
  EXPECT_EQ(ask({8}, 8, 0).tokenRouting, 0);
  EXPECT_EQ(ask({8}, 8, 1).tokenRouting, 1);

  layer.tokenRouting = 0;
  layer.topK = 8;
  const int nodes[] = {4, 4};
  cluster.nNodes = 2;
  cluster.ranksPerNode = nodes;
  std::size_t bytes = 0;
  check(moecclExplain(&query, nullptr, nullptr, &bytes));
  std::string text(bytes, ' ');
  check(moecclExplain(&query, nullptr, text.data(), &bytes));
  for (const char* part : {"rows go by token routing; by a row for each choice it would take",
                           "\"token dispatch\"", " ms node, ", " ms flat (priced)"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in:\n" << text.c_str();
  // GPUs have none.
  cluster.links = moecclLinksNvlink;
  cluster.networkGbits = 0;
  EXPECT_EQ(schedules(query)[0].tokenRouting, 0);
}

TEST(Select, TheResidualBranchTakesTimeUnderEverySchedule) {
  runJob(kJob, [](moecclComm_t comm, int) {
    moecclGrid_t grid = gridOn(comm);
    moecclMoeConfig_t config = layerConfig();
    const auto without = schedules(grid, config);
    config.residual = 64;
    for (const Choice& choice : schedules(grid, config)) {
      const Choice before = choiceOf(without, choice.schedule);
      checkThat(choice.seconds > before.seconds, "no time");
      checkThat(choice.communication > before.communication * (1 - 1e-9), "communication");
      // S1 gathers parts anyway.
      checkThat((choice.nExchanges > before.nExchanges) == (choice.schedule != moecclScheduleS1),
                "exchanges");
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
      const auto choices = algorithmsFor(cluster, "alltoall", 4096);
      checkThat(choices.size() == 2, std::to_string(choices.size()) + " choices");
      checkThat(choices[0].algorithm == "bruck:radix=4", choices[0].algorithm);
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
    checkThat(algorithmsFor(cluster, "alltoall", 4096).size() > 4,
              "without a profile all algorithms are priced");
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
    const auto choices = algorithmsFor(cluster, "alltoall", 4096);
    checkThat(choices.size() == 1 && choices[0].measured == 1, "the sample was not found");
    checkThat(choices[0].algorithm == "bruck:radix=4", choices[0].algorithm);
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
      // All places are taken.
      const auto bytes = static_cast<std::size_t>(layer.topK * layer.tokens * layer.embedding) * 4;
      const std::string alone = algorithmsFor(cluster, "alltoall", bytes)[0].algorithm;
      const Choice choice = choiceOf(schedules(grid, layer), moecclScheduleBaseline);
      checkThat(choice.algorithms.back() == alone, choice.exchanges + " against " + alone);
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
    moecclQuery_t query = MOECCL_QUERY_INITIALIZER;
    query.cluster = &cluster;
    query.layer = &layer;
    moecclChoices_t choices = nullptr;
    std::size_t bytes = 0;
    for (const moecclResult_t result :
         {moecclSelect(&query, &choices, nullptr), moecclExplain(&query, nullptr, nullptr, &bytes)})
      checkError(result, moecclInvalidArgument, nullptr, {"cluster.comm has no grid"});
  });
}

// Replicas would drift apart in a training that changes them by other last bits.
TEST(Select, TrainingTakesTheBaselineOnlyIfAskedFor) {
  runJob(kJob, [](moecclComm_t comm, int) {
    moecclGrid_t grid = gridOn(comm);
    // Slow is what S1 and S2 need, and the baseline does not.
    moecclProfile_t profile = nullptr;
    check(moecclProfileCreate(comm, &profile), comm);
    addLine(profile, {"dispatch", "flat", 1.0, 0}, nullptr, grid);
    addLine(profile, {"combine", "dedup", 1.0, 0}, nullptr, grid);
    addLine(profile, {"splitdispatch", "flat", 1.0, 0}, nullptr, grid);
    addLine(profile, {"combineallgather", "sequential", 1.0, 0}, nullptr, grid);
    check(moecclProfileFit(profile));
    check(moecclCommSetProfile(comm, profile), comm);
    moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
    cluster.grid = grid;
    moecclMoeConfig_t layer = layerConfig();
    moecclQuery_t query = MOECCL_QUERY_INITIALIZER;
    query.cluster = &cluster;
    query.layer = &layer;
    const auto forward = schedules(query);
    checkThat(forward[0].schedule == moecclScheduleBaseline && forward[0].automatic, "forward");
    query.pass = moecclPassBoth;
    const auto both = schedules(query);
    checkThat(both.size() == 3 && both[0].automatic && both[1].automatic, "S1 and S2");
    checkThat(both[2].schedule == moecclScheduleBaseline && !both[2].automatic, "both passes");
    checkThat(both[2].seconds < both[0].seconds, "the baseline is not the fastest");
    std::string text(10000, '\0');
    std::size_t bytes = text.size();
    check(moecclExplain(&query, nullptr, text.data(), &bytes));
    checkThat(text.find("only if asked for") != text.npos, text);
    layer.schedule = moecclScheduleBaseline;
    const auto asked = schedules(query);
    checkThat(asked.size() == 1 && asked[0].schedule == moecclScheduleBaseline, "asked for");
    check(moecclProfileDestroy(profile));
    check(moecclGridDestroy(grid), comm);
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
  moecclQuery_t query = MOECCL_QUERY_INITIALIZER;
  query.cluster = &cluster;
  query.layer = &layer;
  query.pass = moecclPassBoth;
  const auto choices = schedules(query);
  ASSERT_GE(choices.size(), 3u);
  EXPECT_NE(choices.front().schedule, moecclScheduleBaseline);
  EXPECT_EQ(choices.back().schedule, moecclScheduleBaseline);

  size_t bytes = 0;
  check(moecclExplain(&query, nullptr, nullptr, &bytes));
  std::string text(bytes, '\0');
  check(moecclExplain(&query, nullptr, text.data(), &bytes));
  for (const char* part : {"baseline", "S1", "S2", "MP-AllGather", "dedup", "ms", "priced"})
    EXPECT_NE(text.find(part), text.npos) << part << " is not in:\n" << text;
  char cut[10];
  bytes = sizeof cut;
  check(moecclExplain(&query, nullptr, cut, &bytes));
  EXPECT_EQ(std::strlen(cut), 9u);
  EXPECT_EQ(bytes, text.size());
}

}  // namespace
}  // namespace moeccl::test
