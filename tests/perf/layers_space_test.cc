// Which layers are drawn for a seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "perf/common/draws.h"
#include "perf/perf/layer_space.h"

namespace moeccl::perf::layers {
namespace {

bool isOneOf(std::int64_t value, std::initializer_list<std::int64_t> values) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

// mt19937_64's numbers are the standard's; the rest is arithmetic.
TEST(LayerDraws, AreTheSameEverywhere) {
  Draws draws(5489);
  EXPECT_EQ(draws.below(~std::uint64_t{0}), 14514284786278117030u);
  Draws fresh(1);
  std::vector<int> values = {0, 1, 2, 3, 4, 5, 6, 7};
  fresh.shuffle(values);
  EXPECT_EQ(values, (std::vector<int>{4, 6, 3, 5, 1, 7, 2, 0}));
  for (int i = 0; i < 1000; ++i) {
    const float fraction = fresh.fraction();
    EXPECT_TRUE(fraction >= -1 && fraction < 1) << fraction;
  }
}

TEST(LayerSpace, FirstLayersOfASeed) {
  const std::vector<Layer> expected = {
      {{2, 2, 4, moecclOrderEspEp}, 8, 1024, 16384, 16384, 4, 1, 2.4},
      {{4, 8, 1, moecclOrderEspEp}, 2, 1024, 1024, 4096, 16, 2, 1.2},
      {{2, 4, 2, moecclOrderEspEp}, 8, 512, 8192, 2048, 8, 1, 2.4}};
  EXPECT_TRUE(drawLayers(8, 3, 1, 0) == expected);
}

TEST(LayerSpace, GridsAreValidAndTakeTurns) {
  const std::map<int, std::size_t> grids = {{1, 1}, {2, 4}, {3, 1}, {4, 9},
                                            {6, 4}, {8, 9}, {12, 9}};
  for (const auto& [ranks, count] : grids) {
    const std::vector<Layer> layers = drawLayers(ranks, static_cast<int>(3 * count), 7, 0);
    std::map<std::pair<int, int>, int> taken;
    for (const Layer& layer : layers) {
      ++taken[{layer.grid.nMp, layer.grid.nEsp}];
      EXPECT_EQ(layer.grid.nEp * layer.grid.nEsp, ranks);
      EXPECT_EQ(ranks % layer.grid.nMp, 0);
    }
    EXPECT_EQ(taken.size(), count) << ranks;
    for (const auto& [grid, times] : taken)
      EXPECT_EQ(times, 3) << ranks << " ranks, N_MP " << grid.first << ", N_ESP " << grid.second;
  }
}

TEST(LayerSpace, ValuesAreTableThrees) {
  std::set<std::int64_t> samples, lengths, embeddings, hidden, experts, topK;
  std::set<double> factors;
  for (const Layer& layer : drawLayers(8, 500, 3, 0)) {
    samples.insert(layer.samples);
    lengths.insert(layer.length);
    embeddings.insert(layer.embedding / layer.grid.nEsp);
    hidden.insert(layer.hidden / layer.grid.nEsp);
    experts.insert(layer.experts / layer.grid.nEp);
    topK.insert(layer.topK);
    factors.insert(layer.capacityFactor);
    EXPECT_LE(layer.topK, layer.experts);
  }
  using Values = std::set<std::int64_t>;
  EXPECT_EQ(samples, (Values{2, 4, 8}));
  EXPECT_EQ(lengths, (Values{512, 1024, 2048}));
  EXPECT_EQ(embeddings, (Values{1024, 2048, 4096}));
  EXPECT_EQ(hidden, (Values{1024, 2048, 4096}));
  EXPECT_EQ(experts, (Values{1, 2}));
  EXPECT_EQ(topK, (Values{1, 2}));
  EXPECT_EQ(factors, (std::set<double>{1.2, 2.4}));
}

TEST(LayerSpace, SeedsDiffer) {
  EXPECT_TRUE(drawLayers(4, 9, 1, 0) == drawLayers(4, 9, 1, 0));
  EXPECT_FALSE(drawLayers(4, 9, 1, 0) == drawLayers(4, 9, 2, 0));
}

TEST(LayerSpace, MoreLayersBeginWithTheSameOnes) {
  std::vector<Layer> more = drawLayers(4, 20, 1, 0);
  more.resize(5, more[0]);
  EXPECT_TRUE(more == drawLayers(4, 5, 1, 0));
}

TEST(LayerSpace, TopKChangesNothingElse) {
  const std::vector<Layer> drawn = drawLayers(4, 40, 1, 0);
  std::vector<Layer> fixed = drawLayers(4, 40, 1, 3);
  for (std::size_t i = 0; i < fixed.size(); ++i) {
    EXPECT_EQ(fixed[i].topK, std::min<std::int64_t>(3, fixed[i].experts));
    fixed[i].topK = drawn[i].topK;
  }
  EXPECT_TRUE(fixed == drawn);
}

TEST(LayerSpace, ScaleKeepsWholeShards) {
  for (const Layer& layer : drawLayers(8, 90, 1, 0)) {
    const Layer smallest = scaled(layer, kLargestScale);
    EXPECT_TRUE(isOneOf(smallest.length, {4, 8, 16}));
    EXPECT_TRUE(isOneOf(smallest.embedding / layer.grid.nEsp, {8, 16, 32}));
    EXPECT_EQ(smallest.hidden * kLargestScale, layer.hidden);
    EXPECT_EQ(smallest.hidden % layer.grid.nEsp, 0);
    EXPECT_EQ(smallest.samples, layer.samples);
    EXPECT_TRUE(scaled(layer, 1) == layer);
  }
}

// E = 8, k = 2, f = 1.2, 100 tokens: 30 places, made 32 by N_MP = 4; never more than there are
// tokens.
TEST(LayerSpace, Capacity) {
  Layer layer{{4, 4, 2, moecclOrderEspEp}, 4, 25, 64, 128, 8, 2, 1.2};
  EXPECT_EQ(layer.capacity(), 32);
  layer.grid.nMp = 1;
  EXPECT_EQ(layer.capacity(), 30);
  layer.experts = 2;
  EXPECT_EQ(layer.capacity(), 100);
}

// The same layer: E_local = 2, 32 places from each of 8 ranks, M = 64, H / N_ESP = 64.
TEST(LayerSpace, Bytes) {
  const Layer layer{{4, 4, 2, moecclOrderEspEp}, 4, 25, 64, 128, 8, 2, 1.2};
  constexpr auto kForward = moecclPassForward, kBoth = moecclPassBoth;
  EXPECT_EQ(bytesOfSchedule(layer, moecclScheduleBaseline, kForward),
            4.0 * (4 * 2 * 256 * 64 + 256 * 64));
  EXPECT_EQ(bytesOfSchedule(layer, moecclScheduleS1, kForward), 4.0 * (4 * 2 * 64 * 64 + 64 * 64));
  EXPECT_EQ(bytesOfSchedule(layer, moecclScheduleS1, kBoth), 4.0 * (6 * 2 * 64 * 64 + 3 * 64 * 64));
  EXPECT_EQ(bytesOfData(layer, kForward), 4.0 * (2 * 2 * 64 * 64 + 64 * 8 + 3 * 100 * 64));
  EXPECT_EQ(bytesOfData(layer, kBoth), 3 * bytesOfData(layer, kForward));
}

}  // namespace
}  // namespace moeccl::perf::layers
