// Prices, and the links that come from measured collectives.
#include "src/model/link_fit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "algorithms/choice.h"
#include "src/model/alternatives.h"
#include "src/model/cost_model.h"
#include "src/model/group_text.h"
#include "tests/source_file.h"

namespace moeccl {
namespace {

NodePrice priceOf(const AlgorithmChoice& choice, const Topology& topology) {
  const int node = largestNode(topology);
  return NodePrice(topology, node, *plansOf(choice, topology, node));
}

// The highest line is the price, of blocks of any size.
void expectLinesOf(const NodePrice& price) {
  for (const Sharing& sharing : {Sharing{}, Sharing{3, 2}}) {
    const std::vector<PriceLine> lines = price.lines({}, sharing);
    for (double bytes = 0; bytes < 1e12; bytes = 1.3 * bytes + 1) {
      double highest = 0;
      for (const PriceLine& line : lines) highest = std::max(highest, line.at(bytes));
      const double seconds = price.seconds(bytes, {}, sharing);
      EXPECT_NEAR(highest, seconds, 1e-8 * seconds) << bytes << ", " << lines.size() << " lines";
    }
  }
}

// Neither larger blocks nor dearer links nor company make anything cheaper, whatever the plan.
TEST(NodePrice, NeverFalls) {
  for (const Topology& topology : {Topology::even(1, 5), Topology::even(3, 4),
                                   Topology::uneven(std::vector{3, 1, 2}), Topology::even(6, 1)})
    for (const Algorithm& algorithm : algorithms()) {
      Parameters problem;
      problem.grid = {1, topology.ranks() / (topology.ranks() % 2 == 0 ? 2 : 1),
                      topology.ranks() % 2 == 0 ? 2 : 1, true};
      if (topology.ranks() % 2 == 0) problem.grid.mp = 2;
      for (const AlgorithmChoice& choice :
           differentOf(alternatives(algorithm.collective, problem), topology)) {
        const NodePrice price = priceOf(choice, topology);
        double before = 0;
        for (double bytes = 0; bytes < 1e9; bytes = 3 * bytes + 1) {
          const double now = price.seconds(bytes, {});
          EXPECT_GE(now, before) << algorithm.name << ' ' << bytes;
          EXPECT_TRUE(std::isfinite(now) && now > 0) << algorithm.name;
          before = now;
          for (const auto& [name, cost] : kLinkNames) {
            Links dearer;
            dearer.*cost *= 7;
            EXPECT_GE(price.seconds(bytes, dearer), now) << algorithm.name << ' ' << name;
          }
          EXPECT_GE(price.seconds(bytes, {}, {2, 1}), now);
          EXPECT_GE(price.seconds(bytes, {}, {1, 2}), now);
        }
        expectLinesOf(price);
      }
    }
}

// By hand: two ranks on two nodes send each other a block.
TEST(NodePrice, SharesTheUplinkAndTheProcessors) {
  const Links links{.overheadBetween = 10,
                    .latencyBetween = 100,
                    .betaBetween = 1,
                    .gapUplink = 1000,
                    .betaUplink = 2,
                    .betaMemory = 0};
  const NodePrice price =
      priceOf({findAlgorithm(Collective::allToAll, "linear"), {}}, Topology::even(2, 1));
  EXPECT_DOUBLE_EQ(price.seconds(50, links), 10 + 50 + 1000 + 100 + 100);
  EXPECT_DOUBLE_EQ(price.seconds(50, links, {4, 1}), 10 + 50 + 4 * (1000 + 100) + 100);
  EXPECT_DOUBLE_EQ(price.seconds(50, links, {1, 3}), 3 * (10 + 50) + 1000 + 100 + 100);
  EXPECT_EQ(price.blocksBetween(), 1);
  const Sharing sharing = sharingOf(8, 2, 4);
  EXPECT_EQ(sharing.groups, 4);
  EXPECT_EQ(sharing.slowdown, 2);
  EXPECT_EQ(sharingOf(0, 2, 4).groups, 1);
  EXPECT_EQ(sharingOf(8, 8, 0).slowdown, 1);
}

// Where ranks outnumber processors, lanes still hide what is under way, but not the ranks' own
// work.
TEST(NodePrice, OverlapHidesNoWork) {
  const Topology topology = Topology::even(2, 4);
  Parameters problem;
  problem.grid = {4, 2, 4, true};
  const auto gain = [&](double slowdown) {
    const auto seconds = [&](const char* name) {
      return priceOf({findAlgorithm(Collective::combineAllGather, name), problem}, topology)
          .seconds(1 << 16, {}, {1, slowdown});
    };
    return seconds("sequential") / seconds("pipelined");
  };
  EXPECT_GT(gain(1), gain(16));
}

// What `links` would have a cluster of 2 x 8 ranks take.
Profile synthetic(const Links& links) {
  Profile profile;
  profile.fingerprint = {{8, 8}, "", 4, "", ""};
  const Topology world = Topology::even(2, 8);
  const auto add = [&](Collective collective, const Topology& topology, const Grid& grid,
                       bool alone) {
    Parameters problem;
    problem.grid = grid;
    const int ours = topology.nodeSize(0);
    const Contract contract{collective, topology.ranks(), grid, 1};
    for (const AlgorithmChoice& choice : differentOf(alternatives(collective, problem), topology)) {
      const NodePrice price = priceOf(choice, topology);
      std::vector<Point> points;
      for (double bytes = 256; bytes <= 1 << 22; bytes *= 4)
        points.push_back({bytes,
                          price.seconds(std::ceil(bytes / contract.inputBlocks(0)), links,
                                        sharingOf(alone ? ours : 8, ours, 4)),
                          0.01});
      const std::string where = needsGrid(collective) ? textOf(grid, topology) : textOf(topology);
      profile.add(
          {std::string(nameOf(collective)), textOf(choice), where + (alone ? ", alone" : "")},
          points);
    }
  };
  for (const Topology& pair : {Topology::even(1, 2), Topology::even(2, 1)})
    for (const bool alone : {true, false}) add(Collective::allToAll, pair, {}, alone);
  for (const Collective collective :
       {Collective::allToAll, Collective::allGather, Collective::allReduce})
    add(collective, world, {}, false);
  for (const Collective collective :
       {Collective::dispatch, Collective::combine, Collective::combineAllGather})
    add(collective, world, {2, 8, 2, true}, false);
  return profile;
}

TEST(LinkFit, FindsTheLinksBehindTheSamples) {
  const Links links{.overheadInNode = 2e-6,
                    .latencyInNode = 9e-6,
                    .betaInNode = 1e-9,
                    .overheadBetween = 20e-6,
                    .latencyBetween = 150e-6,
                    .betaBetween = 3e-9,
                    .gapUplink = 8e-6,
                    .betaUplink = 80e-9,
                    .crowding = 0.03,
                    .betaMemory = 0.4e-9};
  const Profile profile = synthetic(links);
  const LinkSamples samples(profile);
  EXPECT_GT(samples.judge({}).medianError, 0.5);
  EXPECT_EQ(samples.judge(links).worstError, 0);
  const LinkFit fit = fitLinks(profile).value();
  EXPECT_LT(fit.medianError, 0.01);
  EXPECT_LT(fit.worstError, 0.05);
  for (const auto& [name, cost] : kLinkNames)
    EXPECT_NEAR(fit.links.*cost / links.*cost, 1, 0.15) << name;
  EXPECT_EQ(fitLinks(profile), fit);
}

// A probe has no more time than its own.
TEST(LinkFit, EndsWhenItIsEnough) {
  const Profile profile = synthetic({.latencyBetween = 150e-6, .betaUplink = 80e-9});
  const auto fittedIn = [&](int looks) {
    return fitLinks(profile, [&] { return looks-- <= 0; }).value();
  };
  // Typical ones, to rounding: also when there was time for slopes and no step.
  for (int looks : {0, static_cast<int>(kLinkCosts)})
    for (const auto& [name, cost] : kLinkNames)
      EXPECT_NEAR(fittedIn(looks).links.*cost / Links{}.*cost, 1, 1e-9) << name;
  const LinkFit once = fittedIn(2 * static_cast<int>(kLinkCosts));
  EXPECT_LT(once.medianError, fittedIn(0).medianError);
  EXPECT_LT(fitLinks(profile)->medianError, once.medianError);
}

// One node tells nothing of links between nodes.
TEST(LinkFit, WhatSamplesDoNotTellStaysTypical) {
  Profile profile;
  profile.fingerprint = {{2}, "", 2, "", ""};
  profile.add({"alltoall", "linear", "1x2"}, {{64, 1e-4, 0}, {1 << 20, 1e-3, 0}});
  const LinkFit fit = fitLinks(profile).value();
  EXPECT_LT(fit.worstError, 0.02);
  EXPECT_NEAR(fit.links.betaUplink / Links{}.betaUplink, 1, 1e-6);
  EXPECT_NEAR(fit.links.latencyBetween / Links{}.latencyBetween, 1, 1e-6);
}

// A wire hides copies; what they cost is known all the same where they were timed by themselves.
TEST(LinkFit, WhatIsKnownStaysWhereSamplesAreDisturbed) {
  Profile profile;
  profile.fingerprint = {{2, 2}, "", 2, "", ""};
  for (const char* algorithm : {"linear", "hierarchical"})
    profile.add({"alltoall", algorithm, "2x2"},
                {{256, 3e-4, 0}, {4096, *algorithm == 'l' ? 3e-4 : 9e-4, 0}, {1 << 18, 9e-3, 0}});
  Links typical;
  typical.betaMemory = 0.07e-9;
  const auto factor = [&](double Links::*known) {
    const Links fitted = fitLinks(
                             profile, [] { return false; }, typical, known)
                             ->links;
    return fitted.betaMemory / typical.betaMemory;
  };
  EXPECT_GT(factor(nullptr), 5);
  EXPECT_LT(factor(&Links::betaMemory), 2.5);
}

// A shaped uplink lets a burst pass after a pause, in which most samples fit.
TEST(LinkFit, UplinksCostWhatTheyDoBeyondABurst) {
  const Links links{.latencyBetween = 150e-6, .betaUplink = 80e-9};
  const Profile steady = synthetic(links);
  Profile profile;
  profile.fingerprint = steady.fingerprint;
  for (const Curve& curve : steady.curves()) {
    std::vector<Point> samples = curve.samples;
    if (curve.key.where.find("1x2") == std::string::npos)
      for (Point& sample : samples) sample.seconds -= std::min(0.6 * sample.seconds, 4e-3);
    profile.add(curve.key, samples);
  }
  EXPECT_NEAR(fitLinks(profile)->links.betaUplink / links.betaUplink, 1, 0.15);
}

// The first `sizes` samples of every curve between nodes; of every third curve the last one takes
// half as long again.
Profile cutShort(const Profile& whole, std::size_t sizes) {
  Profile cut;
  cut.fingerprint = whole.fingerprint;
  int number = 0;
  for (const Curve& curve : whole.curves()) {
    std::vector<Point> samples = curve.samples;
    if (curve.key.where.find("alone") == std::string::npos) {
      samples.resize(sizes);
      if (number++ % 3 == 1) samples.back().seconds *= 1.5;
    }
    cut.add(curve.key, samples);
  }
  return cut;
}

// Of the curves that were cut, the worst error at 1 MB.
double errorBeyond(const Profile& cut, const Profile& whole) {
  double worst = 0;
  for (const Curve& curve : whole.curves()) {
    if (curve.key.where.find("alone") != std::string::npos) continue;
    const Point& sample = curve.samples[6];
    const Curve* known = cut.find(curve.key.collective, curve.key.algorithm, curve.key.where);
    worst = std::max(worst, std::abs(known->seconds(sample.x) / sample.seconds - 1));
  }
  return worst;
}

TEST(GrowBeyond, GoesOnAsPricesDoWhereASweepWasCutShort) {
  const Profile whole = synthetic({.latencyBetween = 150e-6, .betaUplink = 80e-9});
  Profile cut = cutShort(whole, 3);  // up to 4 KB
  cut.links = fitLinks(cut);
  EXPECT_GT(errorBeyond(cut, whole), 2);
  growBeyond(cut);
  EXPECT_LT(errorBeyond(cut, whole), 0.25);
  Profile unpriced = cutShort(whole, 3);
  const Profile before = unpriced;
  growBeyond(unpriced);
  EXPECT_EQ(unpriced, before);  // no links, no prices
}

TEST(LinkFit, LeavesOutWhatItCannotPrice) {
  Profile profile;
  EXPECT_FALSE(fitLinks(profile));
  profile.fingerprint = {{2, 2}, "", 1, "", ""};
  EXPECT_FALSE(fitLinks(profile));
  const std::vector<Point> points = {{64, 1e-4, 0}};
  profile.add({"alltoall", "none of ours", "2x2"}, points);
  profile.add({"exchange", "linear", "2x2"}, points);
  profile.add({"alltoall", "linear", "4+4"}, points);
  profile.add({"alltoall", "linear", "3x2"}, points);  // more than there are
  profile.add({"alltoall", "linear", "1x1"}, points);  // nobody to send to
  profile.add({"dispatch", "flat", "2x2"}, points);    // no grid
  profile.add({"alltoall", "linear", "mp1,ep4,esp1 on 2x2"}, points);
  profile.add({"dispatch", "flat", "mp1,ep3,esp1 on 2x2"}, points);
  EXPECT_FALSE(fitLinks(profile));
  profile.add({"dispatch", "flat", "mp1,ep4,esp1 on 2x2"}, points);
  EXPECT_EQ(LinkSamples(profile).size(), 1u);
}

TEST(GroupText, IsReadBack) {
  for (const Topology& topology :
       {Topology::even(2, 4), Topology::even(1, 1), Topology::uneven(std::vector{4, 4, 3, 4}),
        Topology(std::vector{0, 1, 0, 1}), Topology(std::vector{0, 0, 1, 0})}) {
    const auto group = groupOf(textOf(topology), 64);
    ASSERT_TRUE(group) << textOf(topology);
    EXPECT_EQ(group->topology, topology);
    EXPECT_FALSE(group->grid || group->alone);
    for (const bool consecutive : {true, false}) {
      const Grid grid{1, topology.ranks(), 1, consecutive};
      const auto whole = groupOf(textOf(grid, topology), 64);
      ASSERT_TRUE(whole);
      EXPECT_EQ(whole->grid, grid);
      EXPECT_EQ(whole->topology, topology);
    }
  }
  EXPECT_TRUE(groupOf("2x1, alone", 2)->alone);
  for (const char* wrong : {"",
                            "x",
                            "2",
                            "2x",
                            "2x0",
                            "0x2",
                            "-1x2",
                            "2x4 ",
                            "2x4+",
                            "2x4,",
                            "9x9",
                            "1@-1",
                            "2x4, along",
                            "99999999999x1",
                            "1x2147483647",
                            "65536x65536",
                            "mp1,ep8,esp1 on ",
                            "mp3,ep8,esp1 on 2x4",
                            "mp1,ep8,esp2 on 2x4",
                            "mp0,ep8,esp1 on 2x4",
                            "mp1,ep8 on 2x4"})
    EXPECT_FALSE(groupOf(wrong, 64)) << wrong;
}

// 424 samples of 2 x 4 ranks of moeccl-lab, uplinks of 20 Mbit/s, on a machine whose two cores were
// busy with other things too: half of them spread by more than 80 %. What is asked of the model is
// the noise's own size.
TEST(LinkFit, ReproducesWhatALabMeasured) {
  const Profile profile = loadProfile(sourceFile("tests/model/lab_profile.json"));
  const LinkSamples samples(profile), pairs(profile, 2);
  EXPECT_EQ(samples.size(), 424u);
  EXPECT_EQ(pairs.size(), 150u);
  EXPECT_GT(samples.judge({}).medianError, 0.9);
  EXPECT_LT(samples.judge(pairs.fit().links).medianError, 0.27);
  const LinkFit fit = samples.fit();
  EXPECT_LT(fit.medianError, 0.25);
  // The wire takes 400 ns a byte.
  EXPECT_NEAR(fit.links.betaUplink, 400e-9, 60e-9);
  EXPECT_LT(samples.judge(profile.links.value().links).medianError, 0.25);
}

// A cluster that nobody has measured is priced on the links of one that somebody has.
TEST(LinkFit, PricesOtherClusters) {
  Profile measured = synthetic({.betaUplink = 80e-9});
  measured.links = fitLinks(measured);
  const auto profile = std::make_shared<const Profile>(measured);
  const Topology other = Topology::even(8, 4);
  const double bytes = 1 << 22;
  const auto estimate = [&](std::shared_ptr<const Profile> by, int ranksOnNode) {
    return CostModel(other, std::move(by), ranksOnNode).fastest(Collective::allToAll, {}, bytes);
  };
  EXPECT_FALSE(estimate(profile, 4).measured);
  // Most of it leaves the node.
  EXPECT_GT(estimate(profile, 4).seconds, 4 * bytes * 28 / 32 * 80e-9 * 0.9);
  EXPECT_LT(estimate(profile, 4).seconds, 4 * bytes * 28 / 32 * 80e-9 * 1.5);
  EXPECT_LT(estimate(nullptr, 4).seconds, estimate(profile, 4).seconds / 10);
  EXPECT_NEAR(estimate(profile, 8).seconds, 2 * estimate(profile, 4).seconds,
              estimate(profile, 4).seconds / 2);
}

TEST(CostModel, CountsWhatLeavesTheNode) {
  const Topology topology = Topology::even(2, 4);
  CostModel model(topology);
  const AlgorithmChoice linear{findAlgorithm(Collective::allToAll, "linear"), {}};
  EXPECT_DOUBLE_EQ(model.bytesBetween(Collective::allToAll, linear, linear, 8000), 4000);
  CostModel one(Topology::even(1, 4));
  EXPECT_EQ(one.bytesBetween(Collective::allToAll, linear, linear, 8000), 0);
}

}  // namespace
}  // namespace moeccl
