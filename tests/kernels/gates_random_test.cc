// The random numbers of gates: known answers, independence and moments.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

#include "kernels/gates/random.h"

namespace moeccl::gates {
namespace {

using Counter = std::array<std::uint32_t, 4>;

// The published answers (kat_vectors of Random123, the authors' own code).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}),
            (Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, IsAFunctionOfWhereItIsUsed) {
  const Random random({7, 3, 1}), again({7, 3, 1});
  for (std::int64_t token : {std::int64_t{0}, std::int64_t{5}, std::int64_t{1} << 40})
    for (std::int64_t index = 0; index < 4; ++index) {
      EXPECT_EQ(random.uniform(token, index), again.uniform(token, index));
      EXPECT_EQ(random.normal(token, index), again.normal(token, index));
      EXPECT_EQ(random.fourUniform(token, index), again.fourUniform(token, index));
    }
}

// Also for neighbours that a sum of seed, step, batch and token would mistake for each other, and
// for what differs in its upper half alone.
TEST(Random, DiffersWhereAnythingDiffers) {
  const std::uint64_t high = std::uint64_t{1} << 32;
  const std::vector<Draw> draws = {{0, 0, 0}, {1, 0, 0}, {0, 1, 0},    {0, 0, 1},    {1, 1, 0},
                                   {0, 1, 1}, {2, 0, 0}, {high, 0, 0}, {0, high, 0}, {0, 0, high}};
  std::set<double> seen;
  int drawn = 0;
  for (const Draw& draw : draws)
    for (std::int64_t token : {0, 1, 2})
      for (std::int64_t index : {0, 1, 2}) {
        seen.insert(Random(draw).uniform(token, index));
        seen.insert(Random(draw).uniform(token + (std::int64_t{1} << 32), index));
        drawn += 2;
      }
  EXPECT_EQ(seen.size(), drawn);
}

struct Moments {
  double mean = 0, square = 0, fourth = 0, neighbours = 0;
};

template <typename Function>
Moments momentsOf(Function value) {
  constexpr int kTokens = 2000, kIndexes = 64;
  Moments sums;
  for (std::int64_t token = 0; token < kTokens; ++token)
    for (std::int64_t index = 0; index < kIndexes; ++index) {
      const double x = value(token, index), next = value(token, index + 1);
      sums.mean += x / (kTokens * kIndexes);
      sums.square += x * x / (kTokens * kIndexes);
      sums.fourth += x * x * x * x / (kTokens * kIndexes);
      sums.neighbours += x * next / (kTokens * kIndexes);
    }
  return sums;
}

// Bounds are more than four standard deviations of the mean of 128000 numbers.
TEST(Random, NormalNumbersHaveTheirMoments) {
  const Random random({1, 2, 3});
  const Moments moments = momentsOf(
      [&](std::int64_t token, std::int64_t index) { return random.normal(token, index); });
  EXPECT_NEAR(moments.mean, 0, 0.012);
  EXPECT_NEAR(moments.square, 1, 0.017);
  EXPECT_NEAR(moments.fourth, 3, 0.12);
  EXPECT_NEAR(moments.neighbours, 0, 0.012);
}

TEST(Random, UniformNumbersHaveTheirMoments) {
  const Random random({1, 2, 3});
  const auto check = [](const Moments& moments) {  // of 2 u - 1
    EXPECT_NEAR(moments.mean, 0, 0.007);
    EXPECT_NEAR(moments.square, 1.0 / 3, 0.004);
    EXPECT_NEAR(moments.fourth, 1.0 / 5, 0.004);
    EXPECT_NEAR(moments.neighbours, 0, 0.004);
  };
  check(momentsOf([&](std::int64_t token, std::int64_t index) {
    return 2 * random.uniform(token, index) - 1;
  }));
  check(momentsOf([&](std::int64_t token, std::int64_t index) {
    return 2 * random.fourUniform(token, index / 4)[index % 4] - 1;
  }));
}

}  // namespace
}  // namespace moeccl::gates
