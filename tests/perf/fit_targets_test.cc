// What moeccl-fit measures on a grid, each thing once.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "perf/fit/targets.h"

namespace moeccl::perf {
namespace {

using Ints = std::vector<int>;

std::vector<std::string> textsOf(const std::vector<Target>& targets) {
  std::vector<std::string> texts;
  for (const Target& target : targets) texts.push_back(target.text);
  return texts;
}

TEST(FitTargets, Members) {
  const moecclGridShape_t espFirst{2, 4, 2, moecclOrderEspEp}, epFirst{4, 4, 2, moecclOrderEpEsp};
  EXPECT_EQ(membersOf(espFirst, moecclGroupMp, 5, 8), (Ints{4, 5}));
  EXPECT_EQ(membersOf(espFirst, moecclGroupEp, 5, 8), (Ints{1, 3, 5, 7}));
  EXPECT_EQ(membersOf(espFirst, moecclGroupEsp, 5, 8), (Ints{4, 5}));
  EXPECT_EQ(membersOf(epFirst, moecclGroupMp, 5, 8), (Ints{4, 5, 6, 7}));
  EXPECT_EQ(membersOf(epFirst, moecclGroupEp, 5, 8), (Ints{4, 5, 6, 7}));
  EXPECT_EQ(membersOf(epFirst, moecclGroupEsp, 5, 8), (Ints{1, 5}));
  EXPECT_EQ(membersOf(epFirst, moecclGroupWorld, 5, 8).size(), 8u);
}

TEST(FitTargets, Patterns) {
  const Ints nodes{0, 0, 1, 1, 1};
  EXPECT_EQ(patternOf(Ints{2, 3}, nodes), (Ints{0, 0}));
  EXPECT_EQ(patternOf(Ints{2, 0, 4}, nodes), (Ints{0, 1, 0}));
  EXPECT_EQ(textOfPattern(Ints{0, 0, 1, 1}), "2x2");
  EXPECT_EQ(textOfPattern(Ints{0, 1, 0}), "1x2+1x1");
}

TEST(FitTargets, GroupsThatLookAlikeAreMeasuredOnce) {
  const Ints nodes{0, 0, 0, 0, 1, 1, 1, 1};
  const moecclGridShape_t grids[] = {{1, 4, 2, moecclOrderEspEp}, {2, 4, 2, moecclOrderEspEp}};
  const std::vector<Target> targets = targetsOf(grids, nodes);
  // The MP group of the second grid and the ESP group of both are two ranks of a node.
  EXPECT_EQ(textsOf(targets),
            (std::vector<std::string>{
                "alltoall of 2x4 ranks", "allgather of 1x2 ranks", "allreduce of 1x2 ranks",
                "alltoall of 2x2 ranks", "alltoallv of 2x2 ranks", "alltoallv of 1x2 ranks",
                "reducescatter of 1x2 ranks", "combine and combineallgather, grid 1x4x2",
                "dispatch and splitdispatch, grid 1x4x2", "combineallgather, grid 2x4x2"}));
  // What does not depend on MP groups is measured once and is the sample of both grids.
  EXPECT_EQ(targets[8].grids, (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(targets[9].grids, (std::vector<std::size_t>{1}));
}

// Without MP, SAA takes turns with combine, on the grid that has no MP groups, wherever that is in
// the list.
TEST(FitTargets, CombineTakesTurnsWithSaaThatGathersNothing) {
  const Ints nodes{0, 0, 0, 0, 1, 1, 1, 1};
  const auto combineOf = [&](std::span<const moecclGridShape_t> grids) {
    for (const Target& target : targetsOf(grids, nodes))
      if (target.collectives[0]->name == "combine") return target;
    return Target{};
  };
  const moecclGridShape_t grids[] = {
      {2, 4, 2, moecclOrderEspEp}, {1, 4, 2, moecclOrderEspEp}, {4, 4, 2, moecclOrderEspEp}};
  const Target both = combineOf(grids);
  ASSERT_EQ(both.collectives.size(), 2u);
  EXPECT_EQ(both.collectives[1]->name, "combineallgather");
  EXPECT_EQ(both.grids, (std::vector<std::size_t>{1, 0, 2}));
  const Target alone = combineOf(std::span(grids).first(1));
  EXPECT_EQ(alone.collectives.size(), 1u);
}

TEST(FitTargets, SamplesOfTheSamePlan) {
  const moecclGridShape_t without{1, 4, 2, moecclOrderEspEp}, with{2, 4, 2, moecclOrderEspEp};
  const auto text = [&](const char* collective, const char* algorithm,
                        const moecclGridShape_t& measured, const moecclGridShape_t& shape) {
    std::string all;
    for (const SampleName& name : namesOf(collective, algorithm, measured, shape))
      all += std::string(name.collective) + " " + name.algorithm + " " +
             std::to_string(name.times) + ";";
    return all;
  };
  EXPECT_EQ(text("dispatch", "flat", without, without), "dispatch flat 1;splitdispatch flat 1;");
  EXPECT_EQ(text("dispatch", "dedup", without, with), "dispatch dedup 1;splitdispatch dedup 2;");
  EXPECT_EQ(text("combine", "dedup", without, without),
            "combine dedup 1;combineallgather sequential 1;");
  EXPECT_EQ(text("combine", "dedup", without, with), "combine dedup 1;");
  EXPECT_EQ(text("combine", "flat", without, without), "combine flat 1;");
  EXPECT_EQ(text("combineallgather", "pipelined", without, without),
            "combineallgather pipelined 1;");
  const moecclGridShape_t unsharded{1, 8, 1, moecclOrderEspEp}, ofTwo{2, 8, 1, moecclOrderEspEp};
  EXPECT_EQ(text("dispatch", "flat", unsharded, ofTwo),
            "dispatch dedup 1;splitdispatch dedup 2;dispatch flat 1;splitdispatch flat 2;");
  EXPECT_EQ(text("combine", "flat", unsharded, unsharded),
            "combine dedup 1;combineallgather sequential 1;combine flat 1;");
  EXPECT_EQ(text("combine", "dedup", unsharded, ofTwo), "combine dedup 1;combine flat 1;");
  EXPECT_EQ(text("combineallgather", "pipelined", without, with), "");
  EXPECT_EQ(text("combineallgather", "sequential", with, with), "combineallgather sequential 1;");
}

// It is the same as that of an EP group of all ranks in their order.
TEST(FitTargets, TheAllToAllOfAllRanksIsTheFirst) {
  const Ints nodes{0, 0, 1, 1};
  const moecclGridShape_t sharded[] = {{1, 2, 2, moecclOrderEspEp}},
                          whole[] = {{1, 4, 1, moecclOrderEspEp}};
  for (const auto& grids : {sharded, whole}) {
    const std::vector<Target> targets = targetsOf(std::span(grids, 1), nodes);
    EXPECT_EQ(targets[0].text, "alltoall of 2x2 ranks");
    EXPECT_EQ(targets[0].group, moecclGroupWorld);
    EXPECT_EQ(std::ranges::count(textsOf(targets), targets[0].text), 1);
  }
}

TEST(FitTargets, OrdersDiffer) {
  const Ints nodes{0, 0, 1, 1};
  const moecclGridShape_t grids[] = {{1, 2, 2, moecclOrderEspEp}, {1, 2, 2, moecclOrderEpEsp}};
  const std::vector<std::string> texts = textsOf(targetsOf(grids, nodes));
  const std::set<std::string> unique(texts.begin(), texts.end());
  for (const char* text :
       {"alltoall of 2x1 ranks", "alltoall of 1x2 ranks", "dispatch and splitdispatch, grid 1x2x2",
        "dispatch and splitdispatch, grid 1x2x2:ep"})
    EXPECT_TRUE(unique.contains(text)) << text;
  EXPECT_EQ(unique.size(), texts.size());
}

TEST(FitTargets, OneRankHasNone) {
  const moecclGridShape_t grids[] = {{1, 1, 1, moecclOrderEspEp}};
  EXPECT_TRUE(targetsOf(grids, Ints{0}).empty());
}

TEST(FitTargets, GroupsUnlikeRank0sAreNamed) {
  const moecclGridShape_t grids[] = {{2, 4, 1, moecclOrderEspEp}};
  EXPECT_TRUE(unlikeGroups(grids, Ints{0, 0, 1, 1}).empty());
  const std::vector<std::string> unlike = unlikeGroups(grids, Ints{0, 0, 0, 1});
  ASSERT_EQ(unlike.size(), 1u);
  EXPECT_EQ(unlike[0], "rank 2's MP group of grid 2x4x1: 2x1 ranks, rank 0's 1x2");
}

}  // namespace
}  // namespace moeccl::perf
