// The kernels of the layer, each against loops that are plainly right.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "kernels/expert.h"
#include "kernels/gate.h"
#include "kernels/permute.h"

namespace moeccl {
namespace {

using Random = std::mt19937;

std::vector<float> uniform(Random& random, std::int64_t count) {
  std::uniform_real_distribution<float> value(-1, 1);
  std::vector<float> values(count);
  for (float& v : values) v = value(random);
  return values;
}

// Few different values, so that equal logits are common.
std::vector<float> coarse(Random& random, std::int64_t count) {
  std::uniform_int_distribution<int> value(-1, 1);
  std::vector<float> values(count);
  for (float& v : values) v = static_cast<float>(value(random)) * 0.5f;
  return values;
}

struct Gated {
  std::vector<std::int32_t> chosen;
  std::vector<float> weights, probabilities;
  std::vector<double> probability, first, assigned;
};

Gated gateBy(const GateShape& shape, const std::vector<float>& input,
             const std::vector<float>& gate) {
  const std::int64_t tokens = static_cast<std::int64_t>(input.size()) / shape.embedding;
  Gated result;
  result.chosen.resize(tokens * shape.choices);
  result.weights.resize(tokens * shape.choices);
  result.probabilities.resize(tokens * shape.experts);
  for (auto* sums : {&result.probability, &result.first, &result.assigned})
    sums->resize(shape.experts);
  std::vector<double> workspace(gateWorkspace(shape));
  chooseExperts(shape, input.data(), gate.data(), tokens, workspace, result.chosen.data(),
                result.weights.data(), result.probabilities.data(),
                {result.probability.data(), result.first.data(), result.assigned.data()});
  return result;
}

void compareWithLoops(const GateShape& shape, const std::vector<float>& input,
                      const std::vector<float>& gate) {
  const Gated gated = gateBy(shape, input, gate);
  const std::int64_t tokens = static_cast<std::int64_t>(input.size()) / shape.embedding;
  std::vector<double> probabilitySum(shape.experts), first(shape.experts), assigned(shape.experts);
  for (std::int64_t t = 0; t < tokens; ++t) {
    std::vector<double> logits(shape.experts), probabilities;
    for (std::int32_t e = 0; e < shape.experts; ++e)
      for (std::int64_t m = 0; m < shape.embedding; ++m)
        logits[e] +=
            static_cast<double>(input[t * shape.embedding + m]) * gate[m * shape.experts + e];
    double sum = 0;
    for (double logit : logits) {
      probabilities.push_back(std::exp(logit));
      sum += probabilities.back();
    }
    for (std::int32_t e = 0; e < shape.experts; ++e) probabilitySum[e] += probabilities[e] /= sum;
    std::vector<std::int32_t> order(shape.experts);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int32_t a, std::int32_t b) { return logits[a] > logits[b]; });
    for (std::int32_t e = 0; e < shape.experts; ++e)
      ASSERT_NEAR(gated.probabilities[t * shape.experts + e], probabilities[e], 1e-7);
    double chosenSum = 0;
    for (std::int32_t c = 0; c < shape.choices; ++c) chosenSum += probabilities[order[c]];
    first[order[0]] += 1;
    for (std::int32_t c = 0; c < shape.choices; ++c) {
      ASSERT_EQ(gated.chosen[t * shape.choices + c], order[c]) << "token " << t << " choice " << c;
      const double weight = probabilities[order[c]] / (shape.choices == 1 ? 1 : chosenSum);
      ASSERT_NEAR(gated.weights[t * shape.choices + c], weight, 1e-7);
      assigned[order[c]] += 1;
    }
  }
  EXPECT_EQ(gated.first, first);
  EXPECT_EQ(gated.assigned, assigned);
  for (std::int32_t e = 0; e < shape.experts; ++e)
    EXPECT_NEAR(gated.probability[e], probabilitySum[e], 1e-12 * static_cast<double>(tokens + 1));
}

TEST(Gate, ChoosesAsLoopsDo) {
  Random random(1);
  for (std::int32_t experts : {1, 2, 3, 4, 5, 8, 13, 64})
    for (std::int32_t choices : {1, 2, 3, 64}) {
      if (choices > experts && choices != 64) continue;
      const GateShape shape{17, experts, std::min(choices, experts)};
      for (std::int64_t tokens : {0, 1, 3, 4, 5, 50}) {
        SCOPED_TRACE(testing::Message()
                     << experts << " experts, " << choices << " choices, " << tokens << " tokens");
        compareWithLoops(shape, uniform(random, tokens * 17), uniform(random, 17 * experts));
        compareWithLoops(shape, coarse(random, tokens * 17), coarse(random, 17 * experts));
      }
    }
}

TEST(Gate, EqualLogitsGoToTheLowerExpert) {
  const GateShape shape{3, 6, 4};
  const Gated gated = gateBy(shape, std::vector<float>(3 * 5, 1.0f), std::vector<float>(18, 0.25f));
  for (std::size_t at = 0; at < gated.chosen.size(); ++at)
    EXPECT_EQ(gated.chosen[at], static_cast<std::int32_t>(at % 4));
  for (float weight : gated.weights) EXPECT_EQ(weight, 0.25f);
}

// What schedules rely on that gate parts apart: a token's routing has the same bits in whatever batch it comes.
TEST(Gate, ATokenDoesNotFeelItsNeighbours) {
  Random random(2);
  for (std::int32_t experts : {3, 8, 30}) {
    const GateShape shape{129, experts, 2};
    const std::vector<float> gate = uniform(random, 129 * experts);
    const std::vector<float> input = uniform(random, 40 * 129);
    const Gated all = gateBy(shape, input, gate);
    for (int begin = 0; begin < 40; ++begin)
      for (int count = 1; begin + count <= std::min(40, begin + 9); ++count) {
        const Gated some = gateBy(
            shape, {input.begin() + begin * 129, input.begin() + (begin + count) * 129}, gate);
        ASSERT_EQ(std::memcmp(some.chosen.data(), all.chosen.data() + begin * 2,
                              some.chosen.size() * sizeof(std::int32_t)),
                  0);
        ASSERT_EQ(std::memcmp(some.weights.data(), all.weights.data() + begin * 2,
                              some.weights.size() * sizeof(float)),
                  0);
      }
  }
}

TEST(Gate, ExtremeLogitsStayFinite) {
  const GateShape shape{1, 3, 2};
  const Gated gated = gateBy(shape, {1e30f, -1e30f}, {1e30f, 0, -1e30f});
  EXPECT_EQ(gated.chosen, (std::vector<std::int32_t>{0, 1, 2, 1}));
  EXPECT_EQ(gated.weights, (std::vector<float>{1, 0, 1, 0}));
}

TEST(Gate, ANanTokenSpoilsItselfAlone) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const GateShape shape{1, 3, 2};
  const Gated gated = gateBy(shape, {1, nan, 2}, {1, 2, 3});
  EXPECT_EQ(gated.chosen, (std::vector<std::int32_t>{2, 1, 0, 1, 2, 1}));
  for (std::size_t at = 0; at < 6; ++at)
    EXPECT_EQ(std::isnan(gated.weights[at]), at / 2 == 1) << at;
}

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

TEST(Permute, ScatterThenCombineGivesBackTheTokens) {
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
    const std::vector<float> weights = uniform(random, tokens * choices);
    const std::vector<float> input = uniform(random, tokens * embedding);
    std::vector<std::int64_t> slots(tokens * choices), used(groups * experts);
    assignSlots({experts, choices, groupTokens, groupSlots}, chosen.data(), tokens, groups,
                used.data(), slots.data());

    const float poison = 1e30f;
    std::vector<float> rows(experts * stride * embedding, poison);
    const Choices all{chosen.data(), slots.data(), weights.data(), tokens, choices};
    scatterTokens(all, input.data(), embedding, stride, rows.data());
    clearUnused(used.data(), groups, experts, groupSlots, embedding, stride, rows.data());

    std::vector<float> expected(rows.size(), poison);
    for (std::int32_t e = 0; e < experts; ++e)
      std::fill_n(expected.begin() + e * stride * embedding, groups * groupSlots * embedding, 0.0f);
    for (std::int64_t at = 0; at < tokens * choices; ++at)
      if (slots[at] >= 0)
        std::copy_n(input.begin() + at / choices * embedding, embedding,
                    expected.begin() + (chosen[at] * stride + slots[at]) * embedding);
    EXPECT_EQ(rows, expected);

    std::vector<float> output(tokens * embedding, poison);
    combineTokens(all, rows.data(), embedding, stride, output.data());
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t m = 0; m < embedding; ++m) {
        double sum = 0;
        for (std::int32_t c = 0; c < choices; ++c)
          if (slots[t * choices + c] >= 0)
            sum += static_cast<double>(weights[t * choices + c]) * input[t * embedding + m];
        EXPECT_NEAR(output[t * embedding + m], sum, 1e-6);
      }
  }
}

TEST(Permute, ListsKeptChoicesByExpert) {
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
      const std::vector<float> weights = uniform(random, tokens * choices);
      const std::vector<float> input = uniform(random, tokens * embedding);
      std::vector<std::int64_t> slots(tokens * choices), used(experts);
      assignSlots({experts, choices, std::max<std::int64_t>(tokens, 1), 6}, chosen.data(), tokens,
                  1, used.data(), slots.data());
      const Choices all{chosen.data(), slots.data(), weights.data(), tokens, choices};
      std::vector<std::int64_t> begins(experts + 1, 99), listed(tokens * choices, 99);
      listByExpert(all, experts, begins.data(), listed.data());

      std::vector<float> output(tokens * embedding), expected = output;
      ASSERT_EQ(begins[0], 0);
      for (std::int32_t e = 0; e < experts; ++e) {
        std::vector<std::int64_t> kept;
        for (std::int64_t at = 0; at < tokens * choices; ++at)
          if (chosen[at] == e && slots[at] >= 0) kept.push_back(at);
        const std::span<const std::int64_t> mine{listed.data() + begins[e],
                                                 listed.data() + begins[e + 1]};
        ASSERT_EQ(kept, std::vector(mine.begin(), mine.end())) << "expert " << e;
        std::vector<float> rows(kept.size() * embedding);
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

TEST(Expert, MatchesLoops) {
  Random random(4);
  for (Activation activation : {Activation::gelu, Activation::relu})
    for (bool biases : {false, true})
      for (std::int64_t rows : {0, 1, 5, 255, 256, 257, 600})
        for (bool inPlace : {false, true}) {
          const std::int64_t embedding = 7, hidden = 10;
          const std::vector<float> w1 = uniform(random, embedding * hidden);
          const std::vector<float> w2 = uniform(random, embedding * hidden);
          const std::vector<float> b1 = uniform(random, hidden), b2 = uniform(random, embedding);
          const std::vector<float> input = uniform(random, rows * embedding);
          std::vector<float> output = input, workspace(expertWorkspace(hidden));
          expertForward(
              activation,
              {w1.data(), biases ? b1.data() : nullptr, w2.data(), biases ? b2.data() : nullptr},
              embedding, hidden, inPlace ? output.data() : input.data(), rows, workspace,
              output.data());
          for (std::int64_t r = 0; r < rows; ++r) {
            std::vector<double> inner(hidden), expected(embedding);
            for (std::int64_t h = 0; h < hidden; ++h) {
              for (std::int64_t m = 0; m < embedding; ++m)
                inner[h] += static_cast<double>(input[r * embedding + m]) * w1[m * hidden + h];
              if (biases) inner[h] += b1[h];
              inner[h] = activation == Activation::relu
                             ? std::max(inner[h], 0.0)
                             : inner[h] * (1 + std::erf(inner[h] / std::sqrt(2.0))) / 2;
            }
            for (std::int64_t m = 0; m < embedding; ++m) {
              for (std::int64_t h = 0; h < hidden; ++h)
                expected[m] += inner[h] * w2[h * embedding + m];
              if (biases) expected[m] += b2[m];
              ASSERT_NEAR(output[r * embedding + m], expected[m], 2e-5) << "row " << r;
            }
          }
        }
}

}  // namespace
}  // namespace moeccl
