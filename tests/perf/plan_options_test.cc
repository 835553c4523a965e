// The options of moeccl-plan that predict.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "perf/plan/options.h"
#include "perf/plan/placement.h"

namespace moeccl::perf::plan {
namespace {

constexpr const char* kLayer =
    "tokens=10,embedding=16,hidden=60,experts=20,top-k=2,capacity-factor=1.5";

Parsed<PredictOptions> parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "moeccl-plan predict");
  return parsePredictOptions(static_cast<int>(arguments.size()), arguments.data());
}

TEST(PredictOptions, LayerAndNodes) {
  const Parsed<PredictOptions> parsed = parse({"--nodes", "3x2", "--layer", kLayer});
  ASSERT_EQ(parsed.error, "");
  const PredictOptions& options = parsed.options;
  EXPECT_EQ(options.ranksPerNode, (std::vector{2, 2, 2}));
  EXPECT_EQ(options.layer.tokens, 10);
  EXPECT_EQ(options.layer.embedding, 16);
  EXPECT_EQ(options.layer.hidden, 60);
  EXPECT_EQ(options.layer.experts, 20);
  EXPECT_EQ(options.layer.topK, 2);
  EXPECT_EQ(options.layer.capacityFactor, 1.5);
  EXPECT_EQ(options.layer.capacityGroups, 0);
  EXPECT_EQ(options.pass, moecclPassForward);
  EXPECT_EQ(options.nMp, 0);
  EXPECT_EQ(parse({"--nodes", "8,8,4", "--layer", kLayer}).options.ranksPerNode,
            (std::vector{8, 8, 4}));
  EXPECT_EQ(parse({"--nodes", "1", "--layer", kLayer, "--pass", "both"}).options.pass,
            moecclPassBoth);
}

TEST(PredictOptions, NodesAreSpelledAlike) {
  const auto nodes = [](const char* text) {
    return parse({"--nodes", text, "--layer", kLayer}).options.ranksPerNode;
  };
  EXPECT_EQ(nodes("2x4"), (std::vector{4, 4}));
  EXPECT_EQ(nodes("4,4,3"), (std::vector{4, 4, 3}));
  EXPECT_EQ(nodes("2x4,3"), (std::vector{4, 4, 3}));
}

TEST(PredictOptions, ACapacityFactorOf0IsDropless) {
  const auto options =
      parse({"--nodes", "1", "--layer",
             "tokens=10,embedding=16,hidden=60,experts=20,top-k=2,capacity-factor=0"})
          .options;
  EXPECT_EQ(options.layer.dropless, 1);
  EXPECT_EQ(parse({"--nodes", "1", "--layer", kLayer}).options.layer.dropless, 0);
}

TEST(PredictOptions, LeafSwitches) {
  const auto parsed = parse({"--nodes", "2,2,2", "--nodes-per-switch", "2", "--oversubscription",
                             "2.5", "--layer", kLayer});
  ASSERT_EQ(parsed.error, "");
  EXPECT_EQ(parsed.options.nodesPerSwitch, 2);
  EXPECT_EQ(parsed.options.oversubscription, 2.5);
}

TEST(PredictOptions, NameWhatIsWrong) {
  const auto expect = [](std::vector<const char*> arguments, const std::string& text) {
    const Parsed<PredictOptions> parsed = parse(std::move(arguments));
    EXPECT_NE(parsed.error.find(text), std::string::npos) << parsed.error;
  };
  const auto layer = [&](const char* value, const char* text) {
    expect({"--nodes", "2,2", "--layer", value}, text);
  };
  expect({"--layer", kLayer}, "--nodes is required");
  expect({"--nodes", "65536x2", "--layer", kLayer}, "more than 65536 ranks");
  expect({"--nodes", "65536,1", "--layer", kLayer}, "more than 65536 ranks");
  for (const char* nodes :
       {"0x2", "2x0", "2,0", "3,,1", "4,", "", "2x", "x2", "2x2x2", "-1", "two"})
    expect({"--nodes", nodes, "--layer", kLayer},
           "--nodes: \"" + std::string(nodes) + "\" are no nodes; give");
  expect({"--nodes", "2,2", "--layer", kLayer, "--top", "-1"}, "-1 is no number from 0 on");
  expect({"--nodes", "2,3", "--layer", kLayer, "--mp", "2"}, "2 does not divide the 5 ranks");
  expect({"--nodes", "2,2", "--layer", kLayer, "--pass", "up"},
         "--pass: up not in {forward,backward,both}");
  for (const char* number : {"nan", "inf", "0.5", "2e6"})
    expect({"--nodes", "2,2", "--layer", kLayer, "--nodes-per-switch", "2", "--oversubscription",
            number},
           "--oversubscription: " + std::string(number) + " is no number from 1 to 1e6");
  expect({"--nodes", "2,2", "--layer", kLayer, "--links", "foo"},
         "--links: foo not in {host,nvlink,pcie}");
  expect({"--nodes", "2,2"}, "--layer");
  layer("tokens=1", "there is no embedding");
  layer("tokens", "\"tokens\" is not NAME=VALUE");
  layer("tokens=1,tokens=2", "tokens is given twice");
  layer("tokens=many", "tokens=many is no number");
  layer("tokens=-1", "tokens=-1 is below 0");
  layer("tokens=1,embedding=0", "embedding=0 is below 1");
  layer("tokens=1,embedding=1,hidden=1,experts=1,top-k=1,capacity-factor=-1",
        "capacity-factor=-1 is below 0");
  layer("tokens=1,embedding=1,hidden=1,experts=1,top-k=1,capacity-factor=inf",
        "capacity-factor=inf is no number");
  layer("tokens=1,embedding=1,hidden=1,experts=1,top-k=1,capacity-factor=1,heads=2",
        "there is no \"heads\"");
}

TEST(PlanPlacement, AllThatTheLayerAllows) {
  PredictOptions options = parse({"--nodes", "2,2", "--layer", kLayer}).options;
  const auto all = placementsOf(options);
  // N_MP of 1, 2 and 4; N_ESP of 1, 2 (in both orders) and 4.
  EXPECT_EQ(all.size(), 3u * 4u);
  options.nMp = 2;
  EXPECT_EQ(placementsOf(options).size(), 4u);
  options.layer.hidden = 3;
  ASSERT_EQ(placementsOf(options).size(), 1u);
  EXPECT_EQ(placementsOf(options)[0].nEp, 4);
  options.layer.experts = 5;
  EXPECT_THROW(placementsOf(options), std::runtime_error);
  // Prime.
  const PredictOptions five = parse({"--nodes", "2,3", "--layer", kLayer}).options;
  EXPECT_EQ(placementsOf(five).size(), 2u * 2u);
  const PredictOptions one = parse({"--nodes", "1", "--layer", kLayer}).options;
  EXPECT_EQ(placementsOf(one).size(), 1u);
}

TEST(PlanPlacement, GroupsInNodes) {
  const std::vector<int> nodes = {4, 4};
  EXPECT_EQ(groupsInNodes({2, 4, 2, moecclOrderEspEp}, nodes), "MP ESP");
  EXPECT_EQ(groupsInNodes({2, 4, 2, moecclOrderEpEsp}, nodes), "MP EP");
  EXPECT_EQ(groupsInNodes({8, 8, 1, moecclOrderEspEp}, nodes), "-");
  EXPECT_EQ(groupsInNodes({1, 2, 4, moecclOrderEspEp}, nodes), "ESP");
  EXPECT_EQ(groupsInNodes({2, 3, 2, moecclOrderEspEp}, {3, 3}), "-");
}

}  // namespace
}  // namespace moeccl::perf::plan
