// Fluid flows, and what plans cost where leaf switches' uplinks carry less than their nodes send.
#include "src/model/leaves.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "algorithms/registry.h"
#include "src/model/alternatives.h"
#include "src/model/cost_model.h"
#include "src/model/fluid.h"
#include "src/model/priced_candidates.h"

namespace moeccl {
namespace {

TEST(Fluid, SharesLinksMaxMinFairly) {
  struct Case {
    const char* what;
    std::vector<Flow> flows;
    std::vector<double> capacities, ends;
  };
  const Case cases[] = {
      {"alone", {{1, 6, {0}}}, {2}, {3}},
      {"two on a link, until one has gone", {{1, 1, {0}}, {1, 3, {0}}}, {1}, {2, 4}},
      {"messages, not flows, get shares", {{3, 3, {0}}, {1, 3, {0}}}, {1}, {4, 6}},
      // The one of two links gets 0.5, and leaves 1.5 of the second link.
      {"two links", {{1, 1, {0, 1}}, {1, 1, {0}}, {1, 3, {1}}}, {1, 2}, {2, 2, 2}},
      // First 0.5 each, then 1 for whom is left.
      {"what others leave", {{1, 1, {0}}, {1, 2, {0, 1}}}, {1, 8}, {2, 3}},
      {"nothing to send", {{1, 0, {0}}, {0, 5, {0}}, {1, 1, {}}, {1, 1, {0}}}, {1}, {0, 0, 0, 1}},
  };
  for (const auto& [what, flows, capacities, ends] : cases) {
    const std::vector<double> found = finishTimes(flows, capacities);
    ASSERT_EQ(found.size(), ends.size());
    for (std::size_t i = 0; i < ends.size(); ++i)
      EXPECT_NEAR(found[i], ends[i], 1e-9) << what << ", flow " << i;
  }
}

// No link carries more than it can, and some link of every flow is never idle before it has gone.
TEST(Fluid, LosesAndMakesNothing) {
  std::mt19937 random(30);
  std::uniform_real_distribution<double> some(0.1, 4);
  for (int round = 0; round < 200; ++round) {
    std::vector<double> capacities(4);
    for (double& capacity : capacities) capacity = some(random);
    std::vector<Flow> flows(6);
    for (Flow& flow : flows) {
      flow = {1 + std::floor(some(random)), some(random), {static_cast<int>(random() % 4)}};
      if (const int other = static_cast<int>(random() % 4); other != flow.links[0])
        flow.links.push_back(other);
    }
    const std::vector<double> ends = finishTimes(flows, capacities);
    std::vector<double> carried(capacities.size(), 0), last(capacities.size(), 0);
    for (std::size_t i = 0; i < flows.size(); ++i)
      for (int link : flows[i].links) {
        carried[static_cast<std::size_t>(link)] += flows[i].size;
        last[static_cast<std::size_t>(link)] =
            std::max(last[static_cast<std::size_t>(link)], ends[i]);
      }
    for (std::size_t link = 0; link < capacities.size(); ++link)
      EXPECT_LE(carried[link], capacities[link] * last[link] * (1 + 1e-9)) << round;
    for (std::size_t i = 0; i < flows.size(); ++i) {
      double latest = 0;  // if all that shares a link with it went first
      for (int link : flows[i].links)
        latest +=
            carried[static_cast<std::size_t>(link)] / capacities[static_cast<std::size_t>(link)];
      EXPECT_LE(ends[i], latest * (1 + 1e-9)) << round;
    }
    // On one link all have gone when it has carried all.
    double all = 0;
    for (Flow& flow : flows) {
      flow.links = {0};
      all += flow.size;
    }
    EXPECT_NEAR(std::ranges::max(finishTimes(flows, capacities)), all / capacities[0], 1e-9);
  }
}

const Links kLinks{.overheadBetween = 10,
                   .latencyBetween = 100,
                   .betaBetween = 1,
                   .gapUplink = 1000,
                   .betaUplink = 2,
                   .betaMemory = 0};
constexpr double kBytes = 50;

double priceOn(const AlgorithmChoice& choice, const Topology& topology, const Switches& switches,
               const Links& links = kLinks) {
  return pricedPlans(choice, topology, leavesOfAll(switches, topology))
      ->price.seconds(kBytes, links);
}

// By hand: nodes of one rank, linear. A rank sends each other one a block, in one step.
TEST(Leaves, UplinksCarryTheirNodesMessages) {
  struct Case {
    const char* what;
    int nodes;
    Switches switches;
    double blocks;  // that a node's uplink carries until the step's last message has gone
  };
  const Case cases[] = {
      {"one switch", 2, {}, 1},
      {"one leaf", 2, {2, 4}, 1},
      {"two leaves", 2, {1, 4}, 4},
      // An uplink carries as much as two nodes send, of whose three blocks two leave.
      {"two leaves of two, all of it", 4, {2, 1}, 3},
      // Of the four, each goes at a fourth of a node's uplink.
      {"two leaves of two, half of it", 4, {2, 2}, 4},
      {"two leaves of two, a fourth of it", 4, {2, 4}, 8},
      // Two blocks leave either leaf, through half of a node's uplink.
      {"an uneven last leaf", 3, {2, 4}, 4},
      // 8 nodes x 8 blocks, of which four nodes' plans are read.
      {"leaves of many nodes", 16, {8, 4}, 32},
  };
  for (const auto& [what, nodes, switches, blocks] : cases) {
    const double messages = nodes - 1;
    // Messages beyond four slow each other down by a hundredth.
    const double crowded = 1 + kLinks.crowding * std::max(0.0, messages - 4);
    EXPECT_DOUBLE_EQ(priceOn({findAlgorithm(Collective::allToAll, "linear"), {}},
                             Topology::even(nodes, 1), switches),
                     messages * (10 + kBytes) + 100 + messages * crowded * 1000 +
                         2 * kBytes * std::max(blocks, messages * crowded))
        << what;
  }
}

// By hand, pairwise, through half of a node's uplink. Nodes 0, 1 | 2, 3: in step 1 they send in
// their leaf, in steps 2 and 3 both of it leave. Nodes 0, 1 | 2: in both steps one of 0 and 1
// leaves.
TEST(Leaves, StepsTakeAsLongAsTheirSlowestMessage) {
  const AlgorithmChoice pairwise{findAlgorithm(Collective::allToAll, "pairwise"), {}};
  const double step = 10 + kBytes + 100 + 1000;
  EXPECT_DOUBLE_EQ(priceOn(pairwise, Topology::even(4, 1), {2, 4}),
                   3 * step + 2 * kBytes * (1 + 4 + 4));
  EXPECT_DOUBLE_EQ(priceOn(pairwise, Topology::even(3, 1), {2, 4}),
                   2 * step + 2 * kBytes * (2 + 2));
}

// A leaf carries one step's messages after another's, whatever lanes do at once.
TEST(Leaves, PlansTakeNoLessThanAllThatLeaves) {
  Parameters problem;
  problem.grid = {2, 4, 2, true};
  const Topology topology = Topology::even(4, 2);
  const Links links{.overheadInNode = 0,
                    .latencyInNode = 0,
                    .betaInNode = 0,
                    .overheadBetween = 0,
                    .latencyBetween = 0,
                    .betaBetween = 0,
                    .gapUplink = 0,
                    .betaUplink = 1,
                    .crowding = 0,
                    .betaMemory = 0};
  for (const Algorithm& algorithm : algorithms()) {
    if (algorithm.collective != Collective::combineAllGather &&
        algorithm.collective != Collective::allToAll)
      continue;
    const AlgorithmChoice choice{&algorithm, problem};
    double blocks = 0;
    for (int rank : {0, 1, 2, 3}) {
      const Plan plan = algorithm.plan(topology, problem, rank);
      for (const Op& op : plan.ops)
        if (op.kind == OpKind::send && topology.nodeOf(op.peer) > 1)
          blocks += static_cast<double>(blockCount(plan.src(op))) / plan.pieces;
    }
    EXPECT_GE(priceOn(choice, topology, {2, 8}, links), blocks * kBytes * 4 * (1 - 1e-9))
        << algorithm.name;
  }
}

TEST(Leaves, OneSwitchChangesNoPriceAndTightOnesLowerNone) {
  Parameters problem;
  problem.grid = {2, 4, 2, true};
  for (const Topology& topology : {Topology::even(4, 2), Topology::uneven(std::vector{3, 1, 4})})
    for (const Algorithm& algorithm : algorithms()) {
      const AlgorithmChoice choice{&algorithm, problem};
      if (!plansOf(choice, topology, 0)) continue;
      double last = priceOn(choice, topology, {}, {});
      EXPECT_EQ(priceOn(choice, topology, {4, 64}, {}), last) << algorithm.name;
      for (const double oversubscription : {1, 2, 4, 64}) {
        const double now = priceOn(choice, topology, {2, oversubscription}, {});
        EXPECT_GE(now, last * (1 - 1e-12)) << algorithm.name << ", " << oversubscription;
        last = now;
      }
    }
}

TEST(Leaves, GroupsThatLeaveShareTheUplink) {
  const auto of = [](const Switches& switches, const Topology& world,
                     std::vector<std::vector<int>> groups) {
    return leavesOf(switches, world, groups);
  };
  const Topology world = Topology::even(4, 2);
  // Consecutive ranks, in a leaf each.
  for (const Leaves& leaves : of({2, 4}, world, {{0, 1, 2, 3}, {4, 5, 6, 7}}))
    EXPECT_TRUE(leaves.empty());
  // One rank of each node: a leaf's uplink carries half of what a node's does, of both groups.
  for (const Leaves& leaves : of({2, 4}, world, {{0, 2, 4, 6}, {1, 3, 5, 7}})) {
    EXPECT_EQ(leaves.leafOf, (std::vector{0, 0, 1, 1}));
    EXPECT_EQ(leaves.capacities, (std::vector{0.5, 0.5}));
  }
  // Nodes 0, 1, 2 | 3: only the second group leaves, and has all of both uplinks.
  const std::vector<Leaves> cut = of({3, 4}, world, {{0, 1, 2, 3}, {4, 5, 6, 7}});
  EXPECT_TRUE(cut[0].empty());
  EXPECT_EQ(cut[1].leafOf, (std::vector{0, 1}));
  EXPECT_EQ(cut[1].capacities, (std::vector{0.75, 0.75}));
}

// What was measured on one switch says nothing of ranks on several leaves.
TEST(Leaves, ArePricedWhateverAProfileHasMeasured) {
  const Topology topology = Topology::even(4, 1);
  Profile measured;
  measured.fingerprint.ranksPerNode = {1, 1, 1, 1};
  measured.add({"alltoall", "linear", textOf(topology)}, {{64, 1, 0.01}, {1 << 20, 2, 0.01}});
  const auto profile = std::make_shared<const Profile>(std::move(measured));
  const AlgorithmChoice linear{findAlgorithm(Collective::allToAll, "linear"), {}};
  const auto estimateOn = [&](const Switches& switches) {
    CostModel model(topology, profile, 1, {}, leavesOfAll(switches, topology));
    return model.estimates(Collective::allToAll, linear, 1024).at(0);
  };
  EXPECT_TRUE(estimateOn({4, 4}).measured);
  EXPECT_FALSE(estimateOn({2, 4}).measured);
  EXPECT_LT(estimateOn({2, 4}).seconds, 0.1);
}

}  // namespace
}  // namespace moeccl
