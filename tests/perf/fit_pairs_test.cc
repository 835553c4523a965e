// Which pairs of ranks moeccl-fit measures.
#include <gtest/gtest.h>

#include "perf/fit/pairs.h"

namespace moeccl::perf {
namespace {

using Ints = std::vector<int>;

TEST(FitPairs, InNodesAndBetween) {
  const auto pairings = pairingsOf(Ints{0, 0, 0, 1, 1, 2});
  ASSERT_EQ(pairings.size(), 2u);
  EXPECT_EQ(pairings[0].text, "1x2");
  EXPECT_EQ(pairings[0].partner, (Ints{1, 0, -1, 4, 3, -1}));
  EXPECT_EQ(pairings[1].text, "2x1");
  EXPECT_EQ(pairings[1].partner, (Ints{3, 4, -1, 0, 1, -1}));
}

TEST(FitPairs, RanksThatAreNotNumberedNodeByNode) {
  const auto pairings = pairingsOf(Ints{3, 1, 3, 1});
  ASSERT_EQ(pairings.size(), 2u);
  EXPECT_EQ(pairings[0].partner, (Ints{2, 3, 0, 1}));
  EXPECT_EQ(pairings[1].partner, (Ints{1, 0, 3, 2}));
}

TEST(FitPairs, OnlyThoseThatThereAre) {
  EXPECT_TRUE(pairingsOf(Ints{0}).empty());
  ASSERT_EQ(pairingsOf(Ints{0, 0}).size(), 1u);
  EXPECT_EQ(pairingsOf(Ints{0, 0})[0].text, "1x2");
  ASSERT_EQ(pairingsOf(Ints{0, 1, 1}).size(), 1u);
  EXPECT_EQ(pairingsOf(Ints{0, 1, 1})[0].text, "2x1");
}

}  // namespace
}  // namespace moeccl::perf
