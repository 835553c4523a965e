// What grid collectives promise about one another.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/plans/support.h"

namespace moeccl::testing {
namespace {

std::string textOf(Collective collective, std::string_view algorithm, const Topology& topology,
                   const Parameters& parameters) {
  std::ostringstream text;
  const std::vector<Plan> plans =
      *plansOf(*findAlgorithm(collective, algorithm), topology, parameters);
  for (int rank = 0; rank < topology.ranks(); ++rank)
    printText(text, plans[static_cast<std::size_t>(rank)], rank);
  return text.str();
}

// So S2 does what S1 does where MP groups have one rank.
TEST(GridCollectives, OfSingleMpRanksAreDispatchAndCombine) {
  for (const auto& [ep, esp] : {std::pair{8, 1}, {4, 2}, {2, 4}, {1, 8}})
    for (const bool espConsecutive : {true, false}) {
      Parameters parameters;
      parameters.grid = {1, ep, esp, espConsecutive};
      for (const Topology& topology : {Topology::even(2, 4), Topology::even(4, 2)}) {
        const auto expectSame = [&](Collective ofMp, std::string_view algorithm, Collective alone,
                                    std::string_view sameAlgorithm) {
          EXPECT_EQ(textOf(ofMp, algorithm, topology, parameters),
                    textOf(alone, sameAlgorithm, topology, parameters))
              << algorithm << " " << nameOf(topology) << " " << nameOf(parameters);
        };
        expectSame(Collective::combineAllGather, "sequential", Collective::combine, "dedup");
        expectSame(Collective::splitDispatch, "dedup", Collective::dispatch, "dedup");
        expectSame(Collective::splitDispatch, "flat", Collective::dispatch, "flat");
      }
    }
}

// Nor does dedup leave anything out where ESP groups have one rank.
TEST(GridCollectives, DedupIsFlatWithoutShards) {
  for (const Topology& topology : {Topology::even(2, 4), Topology::even(4, 2), Topology::even(1, 8),
                                   Topology::even(3, 1), roundRobin(8, 3), compositions(8)[37]})
    for (const Grid& grid : gridsOf(topology.ranks(), 8)) {
      if (grid.esp > 1) continue;
      Parameters parameters;
      parameters.grid = grid;
      parameters.experts = 2;
      for (const Collective collective :
           {Collective::dispatch, Collective::combine, Collective::splitDispatch})
        EXPECT_EQ(textOf(collective, "dedup", topology, parameters),
                  textOf(collective, "flat", topology, parameters))
            << nameOf(collective) << " " << nameOf(topology) << " " << nameOf(parameters);
    }
}

// The payloads that a plan's op sends or copies, those of the input as if MP ranks kept theirs
// apart.
std::vector<std::pair<Buffer, int>> sourcesOf(const Plan& plan, const Op& op, int slots, int slot) {
  std::vector<std::pair<Buffer, int>> sources;
  for (const Blocks& blocks : plan.src(op))
    for (int i = 0; i < blocks.count; ++i) {
      int block = blocks[i];
      if (blocks.buffer == Buffer::input && slots > 1) {
        const int expertAndSlot = block / plan.pieces;
        EXPECT_EQ(expertAndSlot % slots, slot);
        block = expertAndSlot / slots * plan.pieces + block % plan.pieces;
      }
      sources.emplace_back(blocks.buffer, block);
    }
  return sources;
}

// So the samples of the one are samples of the other.
TEST(GridCollectives, SplitDispatchIsDispatchOfTheOwnShare) {
  for (const Topology& topology : {Topology::even(2, 4), Topology::even(4, 2), Topology::even(1, 8),
                                   Topology::even(3, 1), roundRobin(8, 3), compositions(8)[37]})
    for (const Grid& grid : gridsOf(topology.ranks(), 8))
      for (const char* algorithm : {"flat", "dedup"}) {
        Parameters parameters;
        parameters.grid = grid;
        parameters.experts = 2;
        SCOPED_TRACE(nameOf(topology) + " " + nameOf(parameters) + " " + algorithm);
        const auto split =
            plansOf(*findAlgorithm(Collective::splitDispatch, algorithm), topology, parameters);
        const auto whole =
            plansOf(*findAlgorithm(Collective::dispatch, algorithm), topology, parameters);
        ASSERT_TRUE(split && whole);
        for (int rank = 0; rank < topology.ranks(); ++rank) {
          const Plan& a = (*split)[static_cast<std::size_t>(rank)];
          const Plan& b = (*whole)[static_cast<std::size_t>(rank)];
          ASSERT_EQ(a.ops.size(), b.ops.size());
          EXPECT_EQ(a.lanes, b.lanes);
          EXPECT_EQ(a.pieces, b.pieces);
          EXPECT_EQ(a.scratch, b.scratch);
          for (std::size_t i = 0; i < a.ops.size(); ++i) {
            const Op &x = a.ops[i], &y = b.ops[i];
            EXPECT_TRUE(x.kind == y.kind && x.lane == y.lane && x.step == y.step &&
                        x.peer == y.peer);
            EXPECT_EQ(sourcesOf(a, x, grid.mp, grid.mpIndexOf(rank)), sourcesOf(b, y, 1, 0));
            EXPECT_TRUE(std::ranges::equal(a.dst(x), b.dst(y)));
            EXPECT_TRUE(std::ranges::equal(a.deps(x), b.deps(y)));
          }
        }
      }
}

}  // namespace
}  // namespace moeccl::testing
