// What is chosen where nobody has: properties that any sensible price has, and that all ranks agree on.
#include "src/select/automatic.h"

#include <gtest/gtest.h>

#include <vector>

#include "src/cost/price.h"
#include "src/exec/tag.h"

namespace moeccl {
namespace {

std::vector<Plan> plansOf(Collective collective, std::string_view name, const Topology& topology,
                          int node = 0) {
  std::vector<Plan> plans;
  for (int rank : topology.ranksOn(node))
    plans.push_back(findAlgorithm(collective, name)->plan(topology, {}, rank));
  return plans;
}

// By hand: 4 ranks on 2 nodes, linear. A rank sends one block in the node and two to the other node, all
// in one step, whose latency is the longer of both, and copies its own; the uplink carries the two ranks' four blocks.
TEST(Price, IsThatOfTheModel) {
  const Links links{.overheadInNode = 1,
                    .latencyInNode = 1000,
                    .betaInNode = 2,
                    .overheadBetween = 10,
                    .latencyBetween = 2000,
                    .gapUplink = 7,
                    .betaUplink = 3,
                    .betaMemory = 0.5};
  const Topology topology = Topology::even(2, 2);
  const double bytes = 100;
  EXPECT_DOUBLE_EQ(
      price(topology, 0, plansOf(Collective::allToAll, "linear", topology), 100, links),
      2000 + 0.5 * bytes + (1 + 2 * bytes) + 2 * 10 + 4 * 3 * bytes);
  // An empty message takes its time too.
  EXPECT_DOUBLE_EQ(price(topology, 0, plansOf(Collective::allToAll, "linear", topology), 0, links),
                   2000 + 1 + 2 * 10 + 4 * 7);
}

// Pairwise has a step for each partner: the sum of three steps.
TEST(Price, AddsStepsUp) {
  const Links links{.overheadInNode = 1,
                    .latencyInNode = 100,
                    .betaInNode = 0,
                    .overheadBetween = 10,
                    .latencyBetween = 200,
                    .gapUplink = 0,
                    .betaUplink = 1,
                    .betaMemory = 0};
  const Topology topology = Topology::even(2, 2);
  EXPECT_DOUBLE_EQ(
      price(topology, 0, plansOf(Collective::allToAll, "pairwise", topology), 5, links),
      100 + 1 + 2 * (200 + 10 + 2 * 5));
}

// What a crowd of messages costs: of 12 at once, 8 more than go alone.
TEST(Price, KnowsThatMessagesGetInEachOthersWay) {
  const Links links{.overheadInNode = 0,
                    .latencyInNode = 0,
                    .betaInNode = 0,
                    .overheadBetween = 0,
                    .latencyBetween = 0,
                    .gapUplink = 0,
                    .betaUplink = 1,
                    .crowding = 0.5,
                    .alone = 4,
                    .betaMemory = 0};
  const Topology topology = Topology::even(13, 1);
  EXPECT_DOUBLE_EQ(price(topology, 0, plansOf(Collective::allToAll, "linear", topology), 10, links),
                   12 * 10 * (1 + 0.5 * 8));
}

// Lanes run beside each other: what the pipeline hides is not added.
TEST(Price, LetsLanesOverlap) {
  const Topology topology = Topology::even(2, 4);
  Parameters parameters;
  parameters.grid = {4, 2, 4, true};
  const auto seconds = [&](const char* name) {
    std::vector<Plan> plans;
    for (int rank : topology.ranksOn(0))
      plans.push_back(
          findAlgorithm(Collective::combineAllGather, name)->plan(topology, parameters, rank));
    return price(topology, 0, plans, 1 << 22);
  };
  EXPECT_LT(seconds("pipelined"), seconds("sequential"));
}

TEST(Automatic, FewMessagesForSmallBlocksFewBytesForLarge) {
  const Topology topology = Topology::even(4, 4);
  const auto between = [&](std::size_t bytes) {
    const AlgorithmChoice choice = chooseAutomatically(Collective::allToAll, topology, {}, bytes);
    int messages = 0;
    for (int rank = 0; rank < topology.ranks(); ++rank)
      for (const Op& op : choice.algorithm->plan(topology, choice.parameters, rank).ops)
        messages += op.kind == OpKind::send && topology.nodeOf(op.peer) != topology.nodeOf(rank);
    return messages;
  };
  EXPECT_LE(between(64), 4 * 4 * 3);
  EXPECT_EQ(between(1 << 22), 16 * 12);
}

// Ranks that come with different counts may choose differently; their messages must not match.
TEST(Automatic, ChoicesCanBeToldApart) {
  for (const Algorithm& algorithm : algorithms())
    for (const Topology& topology : {Topology::even(1, 16), Topology::even(4, 4)}) {
      Parameters problem;
      problem.grid = {2, topology.ranks() / 2, 2, true};
      std::vector<AlgorithmChoice> seen;
      for (std::size_t bytes = 1; bytes < std::size_t{1} << 30; bytes *= 2) {
        const AlgorithmChoice choice =
            chooseAutomatically(algorithm.collective, topology, problem, bytes);
        EXPECT_LT(markOf(choice), 1u << kPlanBits);
        for (const AlgorithmChoice& other : seen)
          EXPECT_EQ(other == choice, markOf(other) == markOf(choice)) << bytes;
        seen.push_back(choice);
      }
    }
}

TEST(Automatic, NeverWorseThanAnyOther) {
  for (const Topology& topology : {Topology::even(1, 8), Topology::even(8, 1), Topology::even(2, 4),
                                   Topology::uneven(std::vector{3, 1, 2})})
    for (const Algorithm& algorithm : algorithms())
      for (std::size_t bytes : {std::size_t{8}, std::size_t{1} << 12, std::size_t{1} << 20}) {
        Parameters problem;
        problem.grid = {1, topology.ranks(), 1, true};
        const AlgorithmChoice choice =
            chooseAutomatically(algorithm.collective, topology, problem, bytes);
        ASSERT_EQ(choice.algorithm->collective, algorithm.collective);
        // On the node that has most to do.
        const auto priceOf = [&](const Algorithm& some, const Parameters& parameters) {
          std::vector<Plan> plans;
          for (int rank : topology.ranksOn(0))
            plans.push_back(some.plan(topology, parameters, rank));
          return price(topology, 0, plans, bytes);
        };
        EXPECT_LE(priceOf(*choice.algorithm, choice.parameters), priceOf(algorithm, problem))
            << algorithm.name;
      }
}

TEST(ChoiceCache, AnswersAsTheFunctionAndRemembers) {
  const Topology topology = Topology::even(2, 4);
  ChoiceCache cache;
  const AlgorithmChoice first = cache.get(Collective::allToAll, topology, {}, 100);
  EXPECT_EQ(first, chooseAutomatically(Collective::allToAll, topology, {}, 96));
  cache.get(Collective::allToAll, topology, {}, 1 << 20);
  cache.get(Collective::allGather, topology, {}, 100);
  EXPECT_EQ(cache.get(Collective::allToAll, topology, {}, 127), first);
  EXPECT_EQ(cache.get(Collective::allToAll, topology, {}, 0).algorithm->collective,
            Collective::allToAll);
}

}  // namespace
}  // namespace moeccl
