// Lists of blocks, the builder, and what the printers print.
#include "algorithms/plan.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>

#include "algorithms/extents.h"
#include "tests/plans/support.h"

namespace moeccl {

inline void PrintTo(const Blocks& blocks, std::ostream* out) { *out << describe(blocks); }

}  // namespace moeccl

namespace moeccl::testing {
namespace {

std::vector<Blocks> runs(const BlockList& list) { return {list.runs().begin(), list.runs().end()}; }

// Pieces are multiples of 16 bytes wherever there is enough for all, or GPUs would move them byte
// by byte. Nothing is lost.
TEST(Extents, PiecesBeginWhereVectorsCan) {
  for (const std::size_t unit : {1, 2, 4, 8})
    for (int pieces = 1; pieces < 9; ++pieces)
      for (std::size_t elements = 0; elements < 100; ++elements) {
        const std::size_t bytes = elements * unit;
        const Extents cut = Extents::cut(bytes, pieces, unit);
        for (int block : {0, 3}) {
          std::size_t end = static_cast<std::size_t>(block) * bytes;
          for (int piece = 0; piece < pieces; ++piece) {
            const Extent extent = cut[block * pieces + piece];
            ASSERT_EQ(extent.offset, end) << bytes << " bytes, piece " << piece << " of " << pieces;
            end = extent.end();
            const std::size_t begin = extent.offset - static_cast<std::size_t>(block) * bytes;
            EXPECT_EQ(begin % (bytes >= 16u * static_cast<unsigned>(pieces) ? 16 : unit), 0u);
            EXPECT_LE(extent.bytes, bytes / static_cast<unsigned>(pieces) + 16 + 15);
          }
          ASSERT_EQ(end, static_cast<std::size_t>(block + 1) * bytes);
        }
      }
}

TEST(BlockList, FoldsNeighboursAtEqualDistance) {
  EXPECT_EQ(runs({input(0), input(1), input(2)}), (std::vector{input(0, 3)}));
  EXPECT_EQ(runs({input(1), input(5), input(9)}), (std::vector{input(1, 3, 4)}));
  EXPECT_EQ(runs({output(7), output(5), output(3)}), (std::vector{output(7, 3, -2)}));
  EXPECT_EQ(runs({scratch(4), scratch(4)}), (std::vector{scratch(4, 2, 0)}));
  EXPECT_EQ(runs({input(0, 3, 2), input(6, 2, 2)}), (std::vector{input(0, 5, 2)}));
  EXPECT_EQ(runs({input(0), input(4, 3, 4)}), (std::vector{input(0, 4, 4)}));
}

TEST(BlockList, KeepsApartWhatDoesNotFollow) {
  EXPECT_EQ(runs({input(0), output(1)}), (std::vector{input(0), output(1)}));
  EXPECT_EQ(runs({input(0, 2), input(3)}), (std::vector{input(0, 2), input(3)}));
  EXPECT_EQ(runs({input(0, 2), input(2, 2, 3)}), (std::vector{input(0, 2), input(2, 2, 3)}));
}

TEST(BlockList, ForgetsEmptyRuns) {
  EXPECT_TRUE(BlockList(input(3, 0)).empty());
  EXPECT_TRUE(BlockList().empty());
  EXPECT_EQ(runs({input(3), input(9, 0), input(4)}), (std::vector{input(3, 2)}));
}

TEST(BlockList, StrideOfOneBlockDoesNotMatter) {
  EXPECT_EQ(runs({input(3, 1, 17)}), (std::vector{input(3)}));
  EXPECT_EQ(runs({input(3, 1, 17), input(4, 1, -5)}), (std::vector{input(3, 2)}));
}

TEST(BlockList, NamesTheSameBlocksHoweverItFolds) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 2000; ++trial) {
    BlockList list;
    std::vector<std::pair<Buffer, int>> appended, listed;
    for (int i = 0; i < 12; ++i) {
      const Blocks blocks{static_cast<Buffer>(random() % 3), static_cast<int>(random() % 6),
                          static_cast<int>(random() % 4), static_cast<int>(random() % 5) - 2};
      list.append(blocks);
      for (int j = 0; j < blocks.count; ++j) appended.emplace_back(blocks.buffer, blocks[j]);
    }
    for (const Blocks& run : list.runs())
      for (int j = 0; j < run.count; ++j) listed.emplace_back(run.buffer, run[j]);
    ASSERT_EQ(listed, appended);
    ASSERT_EQ(blockCount(list.runs()), static_cast<std::int64_t>(appended.size()));
  }
}

TEST(PlanBuilder, KeepsWhatItIsTold) {
  PlanBuilder builder;
  EXPECT_EQ(builder.scratch({1, 2}), 0);
  EXPECT_EQ(builder.scratch({3, 4}), 1);
  EXPECT_EQ(builder.copy({}, input(0), output(0)), 0);
  EXPECT_EQ(builder.recv({.lane = 2}, 5, {scratch(0), output(3)}), 1);
  EXPECT_EQ(builder.since(1), (OpRange{1, 1}));
  EXPECT_EQ(builder.send({.lane = 1, .step = 4}, 6, scratch(0, 2), {{0}, {1, 0}, {1}}), 2);
  const Plan plan = builder.build();
  EXPECT_EQ(plan.lanes, 3);
  EXPECT_EQ(plan.scratch, (std::vector<Payload>{{1, 2}, {3, 4}}));
  const Op& send = plan.ops[2];
  EXPECT_EQ(send.kind, OpKind::send);
  EXPECT_EQ(send.peer, 6);
  EXPECT_EQ(send.lane, 1);
  EXPECT_EQ(send.step, 4);
  // An empty range is no dependency.
  const std::vector<OpRange> deps(plan.deps(send).begin(), plan.deps(send).end());
  EXPECT_EQ(deps, (std::vector<OpRange>{{0, 1}, {1, 1}}));
  EXPECT_EQ(plan.src(plan.ops[1]).size(), 0u);
  EXPECT_EQ(plan.dst(plan.ops[1]).size(), 2u);
}

// Two ranks all-gather; rank 1 sends what has arrived back into rank 0's scratch and adds it up.
std::vector<Plan> example() {
  PlanBuilder first, second;
  const int back = first.scratch({0, 0});
  first.copy({}, input(0), output(0));
  first.send({}, 1, input(0));
  first.recv({}, 1, output(1));
  first.recv({.lane = 1, .step = 1}, 1, {output(2, 3), scratch(back)});
  first.reduce({.step = 2}, {scratch(back), output(1)}, output(5), {{0}, {2, 2}});
  second.copy({}, input(0), output(1));
  const int arrived = second.recv({}, 0, output(0));
  second.send({}, 0, input(0));
  second.send({.lane = 1, .step = 1}, 0, {input(0), input(0), output(0, 2, 2)}, {{arrived}});
  return {first.build(), second.build()};
}

TEST(Printers, Text) {
  std::ostringstream out;
  printText(out, example()[0], 0);
  printText(out, example()[1], 1);
  EXPECT_EQ(out.str(),
            "rank 0: 5 ops, 2 lanes, 1 scratch blocks\n"
            "  0 [lane 0 step 0] copy in[0] -> out[0]\n"
            "  1 [lane 0 step 0] send in[0] to rank 1\n"
            "  2 [lane 0 step 0] recv out[1] from rank 1\n"
            "  3 [lane 1 step 1] recv out[2..4] scratch[0] from rank 1\n"
            "  4 [lane 0 step 2] reduce scratch[0] out[1] -> out[5] after 0, 2..3\n"
            "rank 1: 4 ops, 2 lanes, 0 scratch blocks\n"
            "  0 [lane 0 step 0] copy in[0] -> out[1]\n"
            "  1 [lane 0 step 0] recv out[0] from rank 0\n"
            "  2 [lane 0 step 0] send in[0] to rank 0\n"
            "  3 [lane 1 step 1] send in[0]x2 out[0..2:2] to rank 0 after 1\n");
}

std::string exampleAsDot(const std::vector<int>& nodes, int only = -1) {
  std::ostringstream out;
  printDot(out, example(), Topology::uneven(nodes), "two ranks", only);
  return out.str();
}

TEST(Printers, Dot) {
  EXPECT_EQ(
      exampleAsDot({1, 1}),
      "digraph plan {\n"
      "  rankdir=LR; node [shape=box, fontsize=10];\n"
      "  labelloc=t; label=\"two ranks\\nblack: waits for; blue, dashed: a message in a node; "
      "orange, dashed: between nodes\";\n"
      "  subgraph cluster_n0 {\n"
      "  label=\"node 0\"; style=rounded;\n"
      "  subgraph cluster_r0 {\n"
      "    label=\"rank 0\";\n"
      "    r0_0 [label=\"0: copy in[0] -> out[0]\"];\n"
      "    r0_1 [label=\"1: send in[0] to rank 1\"];\n"
      "    r0_2 [label=\"2: recv out[1] from rank 1\"];\n"
      "    r0_3 [label=\"3: recv out[2..4] scratch[0] from rank 1\"];\n"
      "    r0_4 [label=\"4: reduce scratch[0] out[1] -> out[5]\"];\n"
      "    r0_0 -> r0_4;\n"
      "    r0_2 -> r0_4;\n"
      "    r0_3 -> r0_4;\n"
      "  }\n"
      "  }\n"
      "  subgraph cluster_n1 {\n"
      "  label=\"node 1\"; style=rounded;\n"
      "  subgraph cluster_r1 {\n"
      "    label=\"rank 1\";\n"
      "    r1_0 [label=\"0: copy in[0] -> out[1]\"];\n"
      "    r1_1 [label=\"1: recv out[0] from rank 0\"];\n"
      "    r1_2 [label=\"2: send in[0] to rank 0\"];\n"
      "    r1_3 [label=\"3: send in[0]x2 out[0..2:2] to rank 0\"];\n"
      "    r1_1 -> r1_3;\n"
      "  }\n"
      "  }\n"
      "  r0_1 -> r1_1 [style=dashed, color=\"#d55e00\", penwidth=2];\n"
      "  r1_2 -> r0_2 [style=dashed, color=\"#d55e00\", penwidth=2];\n"
      "  r1_3 -> r0_3 [style=dashed, color=\"#d55e00\", penwidth=2];\n"
      "}\n");
  const std::string together = exampleAsDot({2});
  EXPECT_NE(together.find("r0_1 -> r1_1 [style=dashed, color=\"#0072b2\"]"), std::string::npos);
  EXPECT_EQ(together.find("node 1"), std::string::npos);
  const std::string one = exampleAsDot({1, 1}, 1);
  EXPECT_EQ(one.find("node 0"), std::string::npos);
  EXPECT_EQ(one.find("dashed,"), std::string::npos);
}

TEST(Printers, DotIsUnderstoodByGraphviz) {
  if (std::system("command -v dot >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "Graphviz is not installed";
  std::FILE* dot = popen("dot -Tsvg -o /dev/null", "w");
  ASSERT_NE(dot, nullptr);
  const std::string text = exampleAsDot({1, 1});
  EXPECT_EQ(std::fwrite(text.data(), 1, text.size(), dot), text.size());
  EXPECT_EQ(pclose(dot), 0);
}

}  // namespace
}  // namespace moeccl::testing
