// What collectives cost, and what is chosen where nobody has: properties that any sensible price
// has, that all ranks agree on, and what a profile makes of them.
#include "src/model/cost_model.h"

#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <vector>

#include "algorithms/choice.h"
#include "src/exec/tag.h"
#include "src/model/alternatives.h"
#include "src/model/group_text.h"
#include "src/model/link_fit.h"
#include "src/model/price.h"
#include "src/model/priced_candidates.h"

namespace moeccl {
namespace {

std::vector<Plan> plansOf(Collective collective, std::string_view name, const Topology& topology,
                          int node = 0) {
  std::vector<Plan> plans;
  for (int rank : topology.ranksOn(node))
    plans.push_back(findAlgorithm(collective, name)->plan(topology, {}, rank));
  return plans;
}

double price(const Topology& topology, int node, const std::vector<Plan>& plans, double blockBytes,
             const Links& links = {}) {
  return NodePrice(topology, node, plans).seconds(blockBytes, links);
}

// By hand: 4 ranks on 2 nodes, linear. A rank sends one block in the node and two to the other
// node, all in one step, whose latency is the longer of both, and copies its own; the uplink
// carries the two ranks' four blocks.
TEST(Price, IsThatOfTheModel) {
  const Links links{.overheadInNode = 1,
                    .latencyInNode = 1000,
                    .betaInNode = 2,
                    .overheadBetween = 10,
                    .latencyBetween = 2000,
                    .betaBetween = 4,
                    .gapUplink = 7,
                    .betaUplink = 3,
                    .betaMemory = 0.5};
  const Topology topology = Topology::even(2, 2);
  const double bytes = 100;
  EXPECT_DOUBLE_EQ(
      price(topology, 0, plansOf(Collective::allToAll, "linear", topology), 100, links),
      2000 + 0.5 * bytes + (1 + 2 * bytes) + 2 * (10 + 4 * bytes) + 4 * (7 + 3 * bytes));
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
                    .betaBetween = 0,
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
                    .betaBetween = 0,
                    .gapUplink = 0,
                    .betaUplink = 1,
                    .crowding = 0.5,
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

TEST(CostModel, FewMessagesForSmallBlocksFewBytesForLarge) {
  const Topology topology = Topology::even(4, 4);
  const auto between = [&](std::size_t bytes) {
    const AlgorithmChoice choice = CostModel(topology).choose(Collective::allToAll, {}, bytes);
    int messages = 0;
    for (int rank = 0; rank < topology.ranks(); ++rank)
      for (const Op& op : choice.algorithm->plan(topology, choice.parameters, rank).ops)
        messages += op.kind == OpKind::send && topology.nodeOf(op.peer) != topology.nodeOf(rank);
    return messages;
  };
  EXPECT_LE(between(64), 4 * 4 * 3);
  EXPECT_EQ(between(1 << 22), 16 * 12);
}

TEST(CostModel, WithoutAProfileByTheLinksThatAreTypical) {
  const Topology topology = Topology::even(2, 8);
  const auto seconds = [&](const Links& links, double bytes) {
    return CostModel(topology, nullptr, 0, {links})
        .fastest(Collective::allToAll, {}, bytes)
        .seconds;
  };
  // 15/16 of 256 MB leave each GPU, half of them by its port of 400 Gb/s.
  const double bytes = 256e6, port = bytes / 2 / 50e9;
  EXPECT_GT(seconds(kGpuLinks, bytes), port);
  EXPECT_LT(seconds(kGpuLinks, bytes), 3 * port);
  EXPECT_GT(seconds({}, bytes), 10 * port);
  // A profile with links knows better.
  Profile profile;
  profile.links = LinkFit{};
  const auto known = std::make_shared<const Profile>(profile);
  EXPECT_EQ(
      CostModel(topology, known, 0, {kGpuLinks}).fastest(Collective::allToAll, {}, bytes).seconds,
      CostModel(topology, known).fastest(Collective::allToAll, {}, bytes).seconds);
}

// Functions of executors' own are candidates where there are such executors.
TEST(CostModel, NativeAlgorithmsOfGpus) {
  const Topology topology = Topology::even(2, 8);
  const auto names = [&](const Typical& typical, Collective collective) {
    std::vector<std::string> all;
    for (const auto& estimate :
         CostModel(topology, nullptr, 0, typical).estimates(collective, {}, 1 << 20))
      all.push_back(std::string(estimate.choice.algorithm->name));
    return all;
  };
  for (const Collective collective : {Collective::allReduce, Collective::allGather,
                                      Collective::reduceScatter, Collective::allToAll}) {
    EXPECT_EQ(std::ranges::count(names({}, collective), "native"), 0);
    EXPECT_EQ(std::ranges::count(names(typicalOf(moecclLinksNvlink), collective), "native"), 1);
  }
  const Topology node = Topology::even(1, 8);
  EXPECT_EQ(textOf(CostModel(node, nullptr, 0, typicalOf(moecclLinksNvlink))
                       .choose(Collective::allReduce, {}, 1 << 20)),
            "native");
  EXPECT_EQ(
      std::ranges::count(names(typicalOf(moecclLinksNvlink), Collective::allGatherv), "native"), 0);
  // One launch is cheaper than the ring's many, and moves no fewer bytes.
  CostModel model(topology, nullptr, 0, typicalOf(moecclLinksNvlink));
  const auto seconds = [&](const char* name, double bytes) {
    const AlgorithmChoice choice{findAlgorithm(Collective::allReduce, name)};
    return model.fastest(Collective::allReduce, choice, bytes).seconds;
  };
  EXPECT_LT(seconds("native", 1024), 0.5 * seconds("ring", 1024));
  EXPECT_GT(seconds("native", 1e9), 0.9 * seconds("ring", 1e9));
  EXPECT_NE(
      model.digest(Collective::allReduce, {}, {findAlgorithm(Collective::allReduce, "ring")}),
      model.digest(Collective::allReduce, {}, {findAlgorithm(Collective::allReduce, "native")}));
}

TEST(CostModel, NeverWorseThanAnyOther) {
  for (const Topology& topology : {Topology::even(1, 8), Topology::even(8, 1), Topology::even(2, 4),
                                   Topology::uneven(std::vector{3, 1, 2})})
    for (const Algorithm& algorithm : algorithms())
      for (std::size_t bytes : {std::size_t{8}, std::size_t{1} << 12, std::size_t{1} << 20}) {
        Parameters problem;
        problem.grid = {1, topology.ranks(), 1, true};
        const Contract contract{algorithm.collective, topology.ranks(), problem.grid, 1};
        const AlgorithmChoice choice =
            CostModel(topology)
                .fastest(algorithm.collective, {nullptr, problem},
                         static_cast<double>(bytes) * contract.inputBlocks(0))
                .choice;
        ASSERT_EQ(choice.algorithm->collective, algorithm.collective);
        // On the node that has most to do.
        const auto priceOf = [&](const Algorithm& some, const Parameters& parameters) {
          std::vector<Plan> plans;
          for (int rank : topology.ranksOn(0))
            plans.push_back(some.plan(topology, parameters, rank));
          return price(topology, 0, plans, static_cast<double>(bytes));
        };
        EXPECT_LE(priceOf(*choice.algorithm, choice.parameters), priceOf(algorithm, problem))
            << algorithm.name;
      }
}

TEST(CostModel, AnswersAlikeWhateverWasAskedBefore) {
  CostModel model(Topology::even(2, 4));
  for (const std::size_t bytes : {100ul, 1ul << 20, 0ul, 127ul, 100ul, 96ul}) {
    model.choose(Collective::allGather, {}, 100);
    EXPECT_EQ(model.choose(Collective::allToAll, {}, bytes),
              CostModel(Topology::even(2, 4)).choose(Collective::allToAll, {}, bytes))
        << bytes;
  }
}

TEST(CostModel, TakesTheFastestOfThoseThatAreServed) {
  CostModel model(Topology::even(2, 4));
  const auto all = model.estimates(Collective::allToAll, {}, 8 * 4096);
  ASSERT_GT(all.size(), 2u);
  const auto chosenOf = [&](std::size_t refused) {
    return model.choose(Collective::allToAll, {}, 4096, [&](const AlgorithmChoice& way) {
      for (std::size_t i = 0; i < refused; ++i)
        if (all[i].choice == way) return false;
      return true;
    });
  };
  EXPECT_EQ(chosenOf(0), all[0].choice);
  EXPECT_EQ(chosenOf(1), all[1].choice);
  EXPECT_EQ(chosenOf(2), all[2].choice);
  // Of what is priced none: another one that is served.
  const AlgorithmChoice other = chosenOf(all.size());
  EXPECT_EQ(other.algorithm->collective, Collective::allToAll);
  for (const auto& priced : all) EXPECT_FALSE(priced.choice == other);
  // What is refused then says why.
  const auto none = [](const AlgorithmChoice&) { return false; };
  EXPECT_EQ(model.choose(Collective::allToAll, {}, 4096, none), all[0].choice);
}

// Each of the all-gather's steps has a number in tags, of which there are 4096.
TEST(CostModel, WhatIsNotOfferedTakesForEver) {
  CostModel model(Topology::even(1, 4098));
  const AlgorithmChoice ring{findAlgorithm(Collective::allGather, "ring"), {}};
  EXPECT_EQ(model.fastest(Collective::allGather, ring, 8).seconds,
            std::numeric_limits<double>::infinity());
  EXPECT_TRUE(model.estimates(Collective::allGather, ring, 8).empty());
}

// alpha + beta bytes, as a profile would have it.
void addLine(Profile& profile, const char* collective, const char* algorithm, const char* where,
             double alpha, double beta) {
  std::vector<Point> points;
  for (double bytes = 256; bytes <= 1 << 20; bytes *= 4)
    points.push_back({bytes, alpha + beta * bytes, 0});
  profile.add({collective, algorithm, where}, points);
}

std::shared_ptr<const Profile> twoLines(const char* where) {
  auto profile = std::make_shared<Profile>();
  addLine(*profile, "alltoall", "linear", where, 1e-3, 1e-9);
  addLine(*profile, "alltoall", "bruck:radix=4", where, 1e-4, 1e-8);
  return profile;
}

// The lines cross at 100 kB of a rank's send buffer.
TEST(CostModel, MeasuredWaysAreTakenByTheirLines) {
  const Topology topology = Topology::even(2, 4);
  CostModel model(topology, twoLines("2x4"));
  const auto all = model.estimates(Collective::allToAll, {}, 8000);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].choice.algorithm->name, "bruck");
  EXPECT_EQ(all[0].choice.parameters.radix, 4);
  EXPECT_TRUE(all[0].measured);
  EXPECT_NEAR(all[0].seconds, 1e-4 + 8e-5, 1e-9);
  EXPECT_NEAR(all[1].seconds, 1e-3 + 8e-6, 1e-9);
  // Of the exchange, not of an algorithm.
  EXPECT_NEAR(all[0].latency, 1e-4, 1e-9);
  EXPECT_NEAR(all[1].latency, 1e-4, 1e-9);
  EXPECT_EQ(model.choose(Collective::allToAll, {}, 99'000 / 8).algorithm->name, "bruck");
  EXPECT_EQ(model.choose(Collective::allToAll, {}, 101'000 / 8).algorithm->name, "linear");
  // What is not measured is priced.
  EXPECT_FALSE(model.fastest(Collective::allGather, {}, 8000).measured);
}

// A fit without time for more than small blocks does not tell which algorithm large ones go by.
TEST(CostModel, BeyondWhatWasMeasuredTimesGrowAsPricesDo) {
  const auto profile = std::make_shared<Profile>();
  profile->add({"alltoall", "bruck", "2x4"}, {{800, 1e-4, 0}, {2400, 1.2e-4, 0}});
  profile->add({"alltoall", "linear", "2x4"}, {{800, 3e-4, 0}, {2400, 3.6e-4, 0}});
  const Topology topology = Topology::even(2, 4);
  EXPECT_EQ(CostModel(topology, profile).choose(Collective::allToAll, {}, 1 << 20).algorithm->name,
            "bruck");
  profile->fingerprint.ranksPerNode = {4, 4};
  profile->links = LinkFit{};
  growBeyond(*profile);
  CostModel model(topology, profile);
  EXPECT_EQ(model.choose(Collective::allToAll, {}, 300).algorithm->name, "bruck");
  EXPECT_EQ(model.choose(Collective::allToAll, {}, 1 << 20).algorithm->name, "linear");
  const double last = model.fastest(Collective::allToAll, {}, 2400).seconds;
  EXPECT_NEAR(model.fastest(Collective::allToAll, {}, 2401).seconds, last, 1e-6);
}

// Where blocks that pass by relays are padded, these are taken only if they are the fastest with
// the padding.
TEST(CostModel, PricesPaddingWhereBlocksPassByRelays) {
  const Topology topology = Topology::even(4, 4);
  CostModel model(topology);
  const auto relays = [&](std::size_t padded, bool (*serves)(const AlgorithmChoice&)) {
    const AlgorithmChoice way = model.choose(Collective::allToAllv, {}, 64, serves, padded);
    return way.algorithm->plan(topology, way.parameters, 0).relays;
  };
  const auto all = [](const AlgorithmChoice&) { return true; };
  EXPECT_TRUE(relays(0, all));
  EXPECT_TRUE(relays(64, all));
  EXPECT_TRUE(relays(100, all));
  EXPECT_FALSE(relays(1 << 20, all));
  // Of the others too.
  const auto most = [](const AlgorithmChoice& way) { return way.algorithm->name != "linear"; };
  EXPECT_TRUE(relays(100, most));
  EXPECT_FALSE(relays(1 << 20, most));
  // A profile names them without their plans. These lines cross at 100 kB of a rank's send buffer.
  auto profile = std::make_shared<Profile>();
  addLine(*profile, "alltoallv", "linear", "4x4", 1e-3, 1e-9);
  addLine(*profile, "alltoallv", "bruck:radix=4", "4x4", 1e-4, 1e-8);
  model = CostModel(topology, profile);
  EXPECT_TRUE(relays(70'000 / 16, all));
  EXPECT_FALSE(relays(101'000 / 16, all));
}

// Relays wait for the largest of unequal blocks.
TEST(CostModel, TakesRelaysOfUnequalBlocksWhereTheySaveMuch) {
  const Topology topology = Topology::even(4, 4);
  const auto relays = [&](Collective collective, double seconds) {
    auto profile = std::make_shared<Profile>();
    for (const char* name : {"alltoall", "alltoallv"}) {
      addLine(*profile, name, "linear", "4x4", 1e-3, 1e-9);
      addLine(*profile, name, "hierarchical", "4x4", seconds, 1e-9);
    }
    CostModel model(topology, profile);
    return model.choose(collective, {}, 1000).algorithm->name == "hierarchical";
  };
  EXPECT_TRUE(relays(Collective::allToAll, 0.95e-3));
  EXPECT_FALSE(relays(Collective::allToAllv, 0.95e-3));
  EXPECT_TRUE(relays(Collective::allToAllv, 0.8e-3));
}

TEST(CostModel, AnotherGroupsLinesAreNotTaken) {
  CostModel model(Topology::even(4, 2), twoLines("2x4"));
  EXPECT_FALSE(model.fastest(Collective::allToAll, {}, 8000).measured);
}

TEST(CostModel, AFixedAlgorithmLeavesNoChoice) {
  CostModel model(Topology::even(2, 4), twoLines("2x4"));
  const AlgorithmChoice fixed{findAlgorithm(Collective::allToAll, "linear"), {}};
  const auto all = model.estimates(Collective::allToAll, fixed, 8);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].choice, fixed);
  EXPECT_TRUE(all[0].measured);
  EXPECT_NEAR(all[0].latency, 1e-4, 1e-9);
}

// Fits measure one of the candidates that do the same.
TEST(CostModel, AFixedAlgorithmIsMeasuredWhereItsTwinIs) {
  auto profile = std::make_shared<Profile>();
  addLine(*profile, "allgather", "linear", "1x4", 1e-3, 1e-9);
  addLine(*profile, "allgather", "linear", "2x2", 1e-3, 1e-9);
  const AlgorithmChoice fixed{findAlgorithm(Collective::allGather, "hierarchical"), {}};
  CostModel inNode(Topology::even(1, 4), profile), across(Topology::even(2, 2), profile);
  const auto all = inNode.estimates(Collective::allGather, fixed, 1000);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].choice, fixed);
  EXPECT_TRUE(all[0].measured);
  EXPECT_NEAR(all[0].seconds, 1e-3 + 1e-6, 1e-9);
  EXPECT_FALSE(across.fastest(Collective::allGather, fixed, 1000).measured);
  AlgorithmChoice oneAfterTheOther{findAlgorithm(Collective::allGather, "linear"), {}};
  oneAfterTheOther.parameters.window = 1;
  EXPECT_FALSE(inNode.fastest(Collective::allGather, oneAfterTheOther, 1000).measured);
}

TEST(CostModel, LinesGoThroughWhatWasMeasured) {
  CostModel model(Topology::even(2, 4), twoLines("2x4"));
  const Line line =
      model.line(Collective::allToAll, {}, {findAlgorithm(Collective::allToAll, "linear"), {}});
  EXPECT_NEAR(line.alpha, 1e-3, 1e-9);
  EXPECT_NEAR(line.beta, 1e-9, 1e-15);
}

// A profile's file may have other fits than its samples would get.
TEST(CostModel, TheLineOfACurveIsItsFit) {
  auto profile = std::make_shared<Profile>(*twoLines("2x4"));
  std::vector<Curve> curves(profile->curves().begin(), profile->curves().end());
  for (Curve& curve : curves) curve.fit.line = {2e-3, 3e-9};
  profile->setCurves(std::move(curves));
  CostModel model(Topology::even(2, 4), profile);
  EXPECT_EQ(
      model.line(Collective::allToAll, {}, {findAlgorithm(Collective::allToAll, "linear"), {}}),
      (Line{2e-3, 3e-9}));
}

TEST(Alternatives, AreFoundByTheirNames) {
  Parameters problem;
  problem.experts = 3;
  for (const Algorithm& algorithm : algorithms())
    for (const AlgorithmChoice& choice : alternatives(algorithm.collective, problem))
      EXPECT_EQ(alternativeNamed(algorithm.collective, problem, textOf(choice)), choice)
          << textOf(choice);
  for (const char* name : {"", "brook", "bruck:", "bruck:radix", "bruck:radix=", "bruck:radix=5",
                           "bruck:radix=4x", "bruck:reach=4", "ring"})
    EXPECT_EQ(alternativeNamed(Collective::allToAll, problem, name), std::nullopt) << name;
}

TEST(Alternatives, ThatDoTheSameAreOne) {
  const auto names = [](Collective collective, const Topology& topology) {
    std::vector<std::string> all;
    for (const AlgorithmChoice& choice : differentOf(alternatives(collective, {}), topology))
      all.push_back(textOf(choice));
    return all;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names(Collective::allGather, Topology::even(1, 2)), (Names{"linear", "native"}));
  EXPECT_EQ(names(Collective::allGather, Topology::even(2, 1)), (Names{"linear", "native"}));
  EXPECT_EQ(names(Collective::allGather, Topology::even(1, 4)),
            (Names{"linear", "ring", "recursive_doubling", "native"}));
  EXPECT_EQ(names(Collective::allGather, Topology::even(2, 2)),
            (Names{"linear", "ring", "recursive_doubling", "hierarchical", "native"}));
  EXPECT_EQ(std::ranges::count(names(Collective::allToAll, Topology::even(1, 2)), "pairwise"), 0);
  EXPECT_EQ(std::ranges::count(names(Collective::allToAll, Topology::even(1, 3)), "pairwise"), 1);
}

TEST(Alternatives, ThatDoTheSameDoSoOnEveryRank) {
  int twins = 0;
  for (const Topology& topology :
       {Topology::even(1, 2), Topology::even(2, 1), Topology::even(1, 4), Topology::even(3, 1),
        Topology::even(2, 4), Topology::uneven(std::vector{1, 3, 2}),
        Topology(std::vector{0, 1, 0, 1}), Topology(std::vector{0, 1, 1, 0, 2})})
    for (const Collective collective : {Collective::allToAll, Collective::allGather,
                                        Collective::reduceScatter, Collective::allReduce}) {
      const std::vector<AlgorithmChoice> all = alternatives(collective, {});
      for (const AlgorithmChoice& one : all)
        for (const AlgorithmChoice& other : all) {
          if (one.algorithm == other.algorithm || !samePlans(one, other, topology)) continue;
          ++twins;
          for (int rank = 0; rank < topology.ranks(); ++rank)
            EXPECT_EQ(one.algorithm->plan(topology, one.parameters, rank),
                      other.algorithm->plan(topology, other.parameters, rank))
                << textOf(one) << ' ' << textOf(other) << ' ' << textOf(topology);
        }
    }
  EXPECT_GT(twins, 0);
}

// Whoever asks the same gets the same answer, while it is among those that were asked for last.
TEST(PricedCandidates, AreMadeOnceForAllThatAskTheSame) {
  const auto ask = [](Collective collective, const AlgorithmChoice& given, const Topology& topology,
                      const Wires& wires = {}) {
    return pricedCandidates(collective, given, topology, wires);
  };
  const Topology topology = Topology::even(2, 3);
  const auto first = ask(Collective::allToAll, {}, topology);
  ASSERT_FALSE(first->empty());
  EXPECT_EQ(ask(Collective::allToAll, {}, Topology::even(2, 3)), first);
  EXPECT_NE(ask(Collective::allToAll, {}, Topology::even(3, 2)), first);
  EXPECT_NE(ask(Collective::allGather, {}, topology), first);
  EXPECT_NE(ask(Collective::allToAll, {}, topology, {.links = {.betaUplink = 1}}), first);
  EXPECT_NE(ask(Collective::allToAll, {}, topology, {.sharing = {.groups = 2}}), first);
  AlgorithmChoice given;
  given.parameters.experts = 2;
  EXPECT_NE(ask(Collective::allToAll, given, topology), first);
  given = {findAlgorithm(Collective::allToAll, "bruck"), {}};
  const std::weak_ptr<const PricedCandidates> one = ask(Collective::allToAll, given, topology);
  ASSERT_EQ(one.lock()->size(), 1u);
  EXPECT_EQ(one.lock()->front().choice, given);
  for (given.parameters.experts = 2; given.parameters.experts < 300; ++given.parameters.experts)
    ask(Collective::allToAll, given, Topology::even(1, 2));
  EXPECT_TRUE(one.expired());
}

// Of MP groups that make no difference, only one size is planned for.
TEST(PricedCandidates, AreMadeOnceForMpGroupsThatMakeNoDifference) {
  const Topology topology = Topology::even(3, 4);
  const Wires wires{.links = {.gapUplink = 1, .betaUplink = 1}};
  for (const Collective collective : {Collective::dispatch, Collective::combine,
                                      Collective::splitDispatch, Collective::combineAllGather})
    for (const int esp : {1, 2, 4, 6})
      for (const int mp : {1, 2, 3, 4, 6, 12}) {
        AlgorithmChoice given;
        given.parameters.grid = {mp, 12 / esp, esp, true};
        const auto all = pricedCandidates(collective, given, topology, wires);
        given.parameters.grid.mp = std::min(mp, mpThatMatters(collective));
        EXPECT_EQ(pricedCandidates(collective, given, topology, wires), all);
        given.parameters.grid.mp = mp;
        for (PricedCandidate one : *all) {
          one.choice.parameters.grid = given.parameters.grid;
          const auto own = pricedPlans(one.choice, topology);
          ASSERT_TRUE(own) << textOf(one.choice);
          EXPECT_EQ(own->price.lines(wires.links, wires.sharing), one.lines)
              << nameOf(collective) << ' ' << textOf(one.choice) << " mp " << mp << " esp " << esp;
          EXPECT_EQ(own->price.blocksBetween(), one.blocksBetween) << textOf(one.choice);
        }
      }
}

TEST(GroupText, NamesGroupsByTheirNodes) {
  EXPECT_EQ(textOf(Topology::even(2, 4)), "2x4");
  EXPECT_EQ(textOf(Topology::even(1, 1)), "1x1");
  EXPECT_EQ(textOf(Topology::uneven(std::vector{4, 4, 3, 4})), "2x4+1x3+1x4");
  EXPECT_EQ(textOf(Topology(std::vector{0, 1, 0, 1})), "1@0+1@1+1@0+1@1");
  EXPECT_EQ(textOf(Grid{2, 4, 2, true}, Topology::even(2, 4)), "mp2,ep4,esp2 on 2x4");
  EXPECT_EQ(textOf(Grid{2, 4, 2, false}, Topology::even(2, 4)), "mp2,ep4-first,esp2 on 2x4");
}

}  // namespace
}  // namespace moeccl
