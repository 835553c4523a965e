// The kernels of the layer, each against loops that are plainly right.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "kernels/capacity.h"
#include "kernels/expert.h"
#include "kernels/permute.h"
#include "tests/moe/reals.h"

namespace moeccl {
namespace {

using test::kRounding;
using test::Random;
using test::Reals;
using test::uniform;

TEST(Slots, FirstChoicesComeBeforeSecondOnes) {
  // Tokens 0 and 1 want expert 1 second, tokens 2 and 3 want it first; it has three places.
  const std::vector<std::int32_t> chosen = {0, 1, 0, 1, 1, 0, 1, 0};
  std::vector<std::int64_t> slots(8), used(2);
  assignSlots({2, 2, 4, 3}, chosen.data(), 4, 1, used.data(), slots.data());
  EXPECT_EQ(slots, (std::vector<std::int64_t>{0, 2, 1, -1, 0, 2, 1, -1}));
  EXPECT_EQ(used, (std::vector<std::int64_t>{3, 3}));
}

TEST(Slots, GroupsHavePlacesOfTheirOwn) {
  // Two groups of three tokens, the second with two; one hot expert, two places per group.
  const std::vector<std::int32_t> chosen = {1, 1, 1, 1, 1};
  std::vector<std::int64_t> slots(5), used(3 * 2, 99);
  assignSlots({2, 1, 3, 2}, chosen.data(), 5, 3, used.data(), slots.data());
  EXPECT_EQ(slots, (std::vector<std::int64_t>{0, 1, -1, 2, 3}));
  EXPECT_EQ(used, (std::vector<std::int64_t>{0, 2, 0, 2, 0, 0}));
}

template <typename Real>
class Permute : public testing::Test {};
TYPED_TEST_SUITE(Permute, Reals);

TYPED_TEST(Permute, ScatterThenCombineGivesBackTheTokens) {
  using Real = TypeParam;
  Random random(3);
  for (std::int64_t tokens : {0, 1, 7, 30}) {
    const std::int32_t experts = 5, choices = 2;
    const std::int64_t embedding = 6, groups = 2, groupTokens = 15, groupSlots = 4;
    const std::int64_t stride = groups * groupSlots + 3;  // rows of others lie in between
    std::vector<std::int32_t> chosen;
    std::uniform_int_distribution<std::int32_t> expert(0, experts - 1);
    for (std::int64_t t = 0; t < tokens; ++t) {
      chosen.push_back(expert(random));
      chosen.push_back((chosen.back() + 1) % experts);
    }
    const std::vector<Real> weights = uniform<Real>(random, tokens * choices);
    const std::vector<Real> input = uniform<Real>(random, tokens * embedding);
    std::vector<std::int64_t> slots(tokens * choices), used(groups * experts);
    assignSlots({experts, choices, groupTokens, groupSlots}, chosen.data(), tokens, groups,
                used.data(), slots.data());

    const Real poison = 1e30;
    std::vector<Real> rows(experts * stride * embedding, poison);
    const Choices<Real> all{chosen.data(), slots.data(), weights.data(), tokens, choices};
    scatterTokens(all, input.data(), embedding, stride, rows.data());
    clearUnused(used.data(), groups, experts, groupSlots, embedding, stride, rows.data());

    std::vector<Real> expected(rows.size(), poison);
    for (std::int32_t e = 0; e < experts; ++e)
      std::fill_n(expected.begin() + e * stride * embedding, groups * groupSlots * embedding,
                  Real{0});
    for (std::int64_t at = 0; at < tokens * choices; ++at)
      if (slots[at] >= 0)
        std::copy_n(input.begin() + at / choices * embedding, embedding,
                    expected.begin() + (chosen[at] * stride + slots[at]) * embedding);
    EXPECT_EQ(rows, expected);

    std::vector<Real> output(tokens * embedding, poison);
    combineTokens(all, rows.data(), embedding, stride, output.data());
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t m = 0; m < embedding; ++m) {
        double sum = 0;
        for (std::int32_t c = 0; c < choices; ++c)
          if (slots[t * choices + c] >= 0)
            sum += static_cast<double>(weights[t * choices + c]) * input[t * embedding + m];
        EXPECT_NEAR(output[t * embedding + m], sum, kRounding<Real>);
      }
  }
}

TYPED_TEST(Permute, ListsKeptChoicesByExpert) {
  using Real = TypeParam;
  Random random(5);
  for (std::int32_t experts : {1, 2, 5})
    for (std::int64_t tokens : {0, 1, 30}) {
      const std::int32_t choices = std::min(experts, 2);
      const std::int64_t embedding = 3;
      std::uniform_int_distribution<std::int32_t> expert(0, experts - 1);
      std::vector<std::int32_t> chosen;
      for (std::int64_t t = 0; t < tokens; ++t)
        for (std::int32_t c = 0; c < choices; ++c)
          chosen.push_back(c == 0 ? expert(random) : (chosen.back() + 1) % experts);
      const std::vector<Real> weights = uniform<Real>(random, tokens * choices);
      const std::vector<Real> input = uniform<Real>(random, tokens * embedding);
      std::vector<std::int64_t> slots(tokens * choices), used(experts);
      assignSlots({experts, choices, std::max<std::int64_t>(tokens, 1), 6}, chosen.data(), tokens,
                  1, used.data(), slots.data());
      const Choices<Real> all{chosen.data(), slots.data(), weights.data(), tokens, choices};
      std::vector<std::int64_t> begins(experts + 1, 99), listed(tokens * choices, 99);
      listByExpert(all, experts, begins.data(), listed.data());

      std::vector<Real> output(tokens * embedding), expected = output;
      ASSERT_EQ(begins[0], 0);
      for (std::int32_t e = 0; e < experts; ++e) {
        std::vector<std::int64_t> kept;
        for (std::int64_t at = 0; at < tokens * choices; ++at)
          if (chosen[at] == e && slots[at] >= 0) kept.push_back(at);
        const std::span<const std::int64_t> mine{listed.data() + begins[e],
                                                 listed.data() + begins[e + 1]};
        ASSERT_EQ(kept, std::vector(mine.begin(), mine.end())) << "expert " << e;
        std::vector<Real> rows(kept.size() * embedding);
        gatherListed(all, mine, input.data(), embedding, rows.data());
        addListed(all, mine, rows.data(), embedding, output.data());
        for (std::int64_t at : kept)
          for (std::int64_t m = 0; m < embedding; ++m) {
            const std::int64_t element = at / choices * embedding + m;
            expected[element] += weights[at] * input[element];
          }
      }
      EXPECT_EQ(output, expected);
    }
}

template <typename Real>
class Expert : public testing::Test {};
TYPED_TEST_SUITE(Expert, Reals);

TYPED_TEST(Expert, MatchesLoops) {
  using Real = TypeParam;
  Random random(4);
  for (Activation activation : {Activation::gelu, Activation::relu, Activation::swiglu})
    for (bool biases : {false, true})
      for (std::int64_t rows : {0, 1, 5, 255, 256, 257, 600})
        for (bool inPlace : {false, true}) {
          const std::int64_t embedding = 7, hidden = 10, width = innerWidth(activation, hidden);
          const std::vector<Real> w1 = uniform<Real>(random, embedding * width);
          const std::vector<Real> w2 = uniform<Real>(random, embedding * hidden);
          const std::vector<Real> b1 = uniform<Real>(random, width),
                                  b2 = uniform<Real>(random, embedding);
          const std::vector<Real> input = uniform<Real>(random, rows * embedding);
          std::vector<Real> output = input, workspace(expertWorkspace(width));
          expertForward<Real>(
              activation,
              {w1.data(), biases ? b1.data() : nullptr, w2.data(), biases ? b2.data() : nullptr},
              embedding, hidden, inPlace ? output.data() : input.data(), rows, workspace,
              output.data());
          for (std::int64_t r = 0; r < rows; ++r) {
            std::vector<double> inner(width), expected(embedding);
            for (std::int64_t h = 0; h < width; ++h) {
              for (std::int64_t m = 0; m < embedding; ++m)
                inner[h] += static_cast<double>(input[r * embedding + m]) * w1[m * width + h];
              if (biases) inner[h] += b1[h];
            }
            for (std::int64_t h = 0; h < hidden; ++h)
              inner[h] = test::plainActivation(activation, inner[h], inner[width - hidden + h]);
            for (std::int64_t m = 0; m < embedding; ++m) {
              for (std::int64_t h = 0; h < hidden; ++h)
                expected[m] += inner[h] * w2[h * embedding + m];
              if (biases) expected[m] += b2[m];
              ASSERT_NEAR(output[r * embedding + m], expected[m], 16 * kRounding<Real>)
                  << "row " << r;
            }
          }
        }
}

}  // namespace
}  // namespace moeccl
