// What the warps of the CUDA kernels do to give places, done by one lane, and by threads as lanes.
#include "kernels/ranking.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/capacity.h"
#include "kernels/permute.h"
#include "tests/kernels/threads_as_lanes.h"

namespace moeccl {
namespace {

struct Shape {
  std::int64_t tokens, groupTokens, groups, groupSlots;
  std::int32_t choices, experts;
};

Shape randomShape(std::mt19937& random) {
  const std::int64_t sizes[] = {0, 1, 2, 7, 100, 255, 256, 257, 700};
  Shape shape{};
  shape.tokens = sizes[random() % std::size(sizes)];
  shape.groups = random() % 4 + 1;
  shape.groupTokens = (shape.tokens + shape.groups - 1) / shape.groups + random() % 3;
  shape.groupSlots = random() % 60;
  shape.choices = random() % 3 + 1;
  shape.experts = random() % 3 == 0 ? 70 : random() % 5 + 1;
  return shape;
}

// In the launchers' three steps.
template <int kLanes, typename Place>
std::vector<std::int64_t> rank(const Entries& entries, Place place) {
  std::vector<std::int64_t> counts(entries.counters() + 1, -77), sums(counts.size());
  const auto eachChunk = [&](auto function) {
    onLanes<kLanes>([&](const auto& lanes) {
      for (std::int64_t chunk = entries.chunks(); chunk-- > 0;) function(lanes, chunk);
    });
  };
  eachChunk([&](const auto& lanes, std::int64_t chunk) {
    countChunk(lanes, entries, chunk, counts.data());
  });
  std::exclusive_scan(counts.begin(), counts.end(), sums.begin(), std::int64_t{0});
  eachChunk([&](const auto& lanes, std::int64_t chunk) {
    rankChunk(lanes, entries, chunk, sums.data(), counts.data(),
              [&](std::int64_t at, std::int32_t expert, std::int64_t rank) {
                place(entries.groupOf(chunk), at, expert, rank, sums.data());
              });
  });
  return sums;
}

template <int kLanes>
void compareSlots(const Shape& shape, std::mt19937& random) {
  std::vector<std::int32_t> chosen(shape.tokens * shape.choices);
  for (std::int32_t& expert : chosen)
    expert = static_cast<std::int32_t>(random() % (shape.experts + 1)) - 1;
  const CapacityShape capacity{shape.experts, shape.choices, shape.groupTokens, shape.groupSlots};
  std::vector<std::int64_t> expectedUsed(shape.groups * shape.experts),
      expectedSlots(chosen.size());
  assignSlots(capacity, chosen.data(), shape.tokens, shape.groups, expectedUsed.data(),
              expectedSlots.data());

  const Entries entries = entriesOf(chosen.data(), nullptr, shape.tokens, shape.choices,
                                    shape.experts, shape.groupTokens, shape.groups);
  std::vector<std::int64_t> slots(chosen.size(), -77), used(expectedUsed.size(), -77);
  const auto sums = rank<kLanes>(entries, [&](std::int64_t group, std::int64_t at,
                                              std::int32_t expert, std::int64_t rank,
                                              const std::int64_t* begins) {
    const std::int64_t place = rank < 0 ? rank : rank - firstRank(entries, group, expert, begins);
    slots[at] = place >= 0 && place < shape.groupSlots ? group * shape.groupSlots + place : -1;
  });
  for (std::size_t i = 0; i < used.size(); ++i)
    used[i] = std::min(shape.groupSlots,
                       rankCount(entries, i / shape.experts, i % shape.experts, sums.data()));
  EXPECT_EQ(slots, expectedSlots);
  EXPECT_EQ(used, expectedUsed);
}

template <int kLanes>
void compareList(const Shape& shape, std::mt19937& random) {
  std::vector<std::int32_t> chosen(shape.tokens * shape.choices);
  std::vector<std::int64_t> slots(chosen.size());
  for (std::int32_t& expert : chosen) expert = random() % shape.experts;
  for (std::int64_t& slot : slots) slot = static_cast<std::int64_t>(random() % 3) - 1;
  const Choices<float> choices{chosen.data(), slots.data(), nullptr, shape.tokens, shape.choices};
  std::vector<std::int64_t> expectedBegins(shape.experts + 1), expected(chosen.size(), -1);
  listByExpert(choices, shape.experts, expectedBegins.data(), expected.data());

  const auto count = static_cast<std::int64_t>(chosen.size());
  const Entries entries = entriesOf(chosen.data(), slots.data(), count, 1, shape.experts, count, 1);
  std::vector<std::int64_t> listed(chosen.size(), -1), begins;
  const auto sums = rank<kLanes>(entries, [&](std::int64_t, std::int64_t at, std::int32_t,
                                              std::int64_t rank, const std::int64_t*) {
    if (rank >= 0) listed[rank] = at;
  });
  for (std::int32_t e = 0; e <= shape.experts; ++e)
    begins.push_back(firstRank(entries, 0, e, sums.data()));
  EXPECT_EQ(listed, expected);
  EXPECT_EQ(begins, expectedBegins);
}

template <int kLanes>
void compareRandomShapes(int rounds) {
  std::mt19937 random(1);
  for (int round = 0; round < rounds && !testing::Test::HasFailure(); ++round) {
    const Shape shape = randomShape(random);
    SCOPED_TRACE(testing::Message()
                 << shape.tokens << " tokens, " << shape.choices << " of " << shape.experts
                 << " experts, " << shape.groups << " groups of " << shape.groupTokens << ", "
                 << shape.groupSlots << " places");
    compareSlots<kLanes>(shape, random);
    compareList<kLanes>(shape, random);
  }
}

TEST(Ranking, OneLaneGivesThePlacesOfTheCpu) { compareRandomShapes<1>(400); }
TEST(Ranking, LanesTogetherGiveThePlacesOfTheCpu) { compareRandomShapes<3>(10); }

// Counters of ten thousand experts in a batch of half a million tokens.
TEST(Ranking, CountersDoNotOverflow) {
  const Entries entries = entriesOf(nullptr, nullptr, 1 << 19, 8, 10000, 1 << 19, 1);
  EXPECT_EQ(entries.chunks(), 16384);
  EXPECT_EQ(entries.counter(16383, 9999), 10000LL * 16384 - 1);
  EXPECT_EQ(
      entriesOf(nullptr, nullptr, std::int64_t{1} << 40, 8, 1, std::int64_t{1} << 40, 1).chunks(),
      std::int64_t{1} << 35);
}

}  // namespace
}  // namespace moeccl
