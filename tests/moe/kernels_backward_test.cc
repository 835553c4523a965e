// The gradients that kernels compute, against differences of loops in double, which are plainly
// right.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "kernels/expert.h"
#include "kernels/permute.h"
#include "tests/moe/reals.h"

namespace moeccl {
namespace {

using test::kRounding;
using test::Random;
using test::Reals;
using test::uniform;
using Vector = std::vector<double>;

template <typename Real>
double dot(const std::vector<Real>& a, const Vector& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// How far off they are, by their step.
constexpr double kSlopes = 1e-8;

// The slopes of `loss` by each of `at`, which it reads.
Vector slopes(Vector& at, const std::function<double()>& loss) {
  constexpr double kStep = 1e-4;
  Vector result;
  for (double& number : at) {
    const double here = number;
    number = here + kStep;
    const double above = loss();
    number = here - kStep;
    const double below = loss();
    number = here;
    result.push_back((above - below) / (2 * kStep));
  }
  return result;
}

template <typename Real>
Vector inDouble(const std::vector<Real>& values) {
  return {values.begin(), values.end()};
}

template <typename Real>
void expectClose(const char* name, const std::vector<Real>& actual, const Vector& expected,
                 double before = 0) {
  ASSERT_EQ(actual.size(), expected.size()) << name;
  double scale = 1;
  for (double each : expected) scale = std::max(scale, std::abs(each));
  for (std::size_t i = 0; i < actual.size(); ++i)
    ASSERT_NEAR(actual[i], before + expected[i], (kSlopes + kRounding<Real>)*scale)
        << name << " " << i;
}

struct ExpertCase {
  Activation activation;
  std::int64_t rows, embedding = 5, hidden = 7;
  Vector w1, b1, w2, b2, input;

  std::int64_t width() const { return innerWidth(activation, hidden); }
  Vector output() const {
    Vector result(rows * embedding);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t m = 0; m < embedding; ++m) result[r * embedding + m] = b2[m];
      const auto inner = [&](std::int64_t column) {
        double x = b1[column];
        for (std::int64_t m = 0; m < embedding; ++m)
          x += input[r * embedding + m] * w1[m * width() + column];
        return x;
      };
      for (std::int64_t h = 0; h < hidden; ++h) {
        const double x = test::plainActivation(activation, inner(h), inner(width() - hidden + h));
        for (std::int64_t m = 0; m < embedding; ++m)
          result[r * embedding + m] += x * w2[h * embedding + m];
      }
    }
    return result;
  }
};

template <typename Real>
class ExpertBackward : public testing::Test {};
TYPED_TEST_SUITE(ExpertBackward, Reals);

TYPED_TEST(ExpertBackward, IsTheSlope) {
  using Real = TypeParam;
  Random random(1);
  for (Activation activation : {Activation::gelu, Activation::relu, Activation::swiglu})
    for (bool biases : {false, true})
      for (std::int64_t rows : {0, 1, 6}) {
        ExpertCase it{activation, rows, 5, 7, {}, {}, {}, {}, {}};
        const std::int64_t width = it.width(), matrix = it.embedding * it.hidden;
        const std::vector<Real> w1 = uniform<Real>(random, it.embedding * width),
                                w2 = uniform<Real>(random, matrix);
        const std::vector<Real> b1 =
            biases ? uniform<Real>(random, width) : std::vector<Real>(width);
        const std::vector<Real> b2 = biases ? uniform<Real>(random, 5) : std::vector<Real>(5);
        const std::vector<Real> input = uniform<Real>(random, rows * it.embedding);
        const std::vector<Real> outputGradient = uniform<Real>(random, rows * it.embedding);
        it.w1 = inDouble(w1), it.b1 = inDouble(b1), it.w2 = inDouble(w2), it.b2 = inDouble(b2);
        it.input = inDouble(input);
        const auto loss = [&] { return dot(outputGradient, it.output()); };

        std::vector<Real> workspace(expertBackwardWorkspace(width));
        std::vector<Real> dW1(w1.size(), 2), dB1(width, 2), dW2(matrix, 2), dB2(5, 2);
        std::vector<Real> dInput = outputGradient;  // in place
        const ExpertWeights<Real> weights{w1.data(), biases ? b1.data() : nullptr, w2.data(),
                                          biases ? b2.data() : nullptr};
        expertBackward<Real>(activation, weights, it.embedding, it.hidden, input.data(),
                             dInput.data(), rows, workspace,
                             {dW1.data(), dB1.data(), dW2.data(), dB2.data()}, dInput.data());
        expectClose("input", dInput, slopes(it.input, loss));
        expectClose("w1", dW1, slopes(it.w1, loss), 2);
        expectClose("b1", dB1, slopes(it.b1, loss), 2);
        expectClose("w2", dW2, slopes(it.w2, loss), 2);
        expectClose("b2", dB2, slopes(it.b2, loss), 2);

        std::vector<Real> alone(dInput.size());
        expertBackward<Real>(activation, weights, it.embedding, it.hidden, input.data(),
                             outputGradient.data(), rows, workspace, {}, alone.data());
        EXPECT_EQ(alone, dInput);
      }
}

// Blocks of rows are taken one after another.
TYPED_TEST(ExpertBackward, ManyRowsAreTheSumOfFew) {
  using Real = TypeParam;
  Random random(2);
  const std::int64_t rows = 600, embedding = 3, hidden = 4;
  const std::vector<Real> w1 = uniform<Real>(random, 12), w2 = uniform<Real>(random, 12);
  const std::vector<Real> input = uniform<Real>(random, rows * embedding);
  const std::vector<Real> outputGradient = uniform<Real>(random, rows * embedding);
  std::vector<Real> workspace(expertBackwardWorkspace(hidden));
  const auto run = [&](std::int64_t step, std::vector<Real>& dW1, std::vector<Real>& dInput) {
    for (std::int64_t r = 0; r < rows; r += step)
      expertBackward<Real>(Activation::gelu, {w1.data(), nullptr, w2.data(), nullptr}, embedding,
                           hidden, input.data() + r * embedding,
                           outputGradient.data() + r * embedding, step, workspace,
                           {.w1 = dW1.data()}, dInput.data() + r * embedding);
  };
  std::vector<Real> whole(12), parts(12), wholeInput(input.size()), partsInput(input.size());
  run(rows, whole, wholeInput);
  run(100, parts, partsInput);
  expectClose("w1", whole, inDouble(parts));
  expectClose("input", wholeInput, inDouble(partsInput));
}

// Two tokens of width 3 with two choices each among three experts of three places; the second
// choice of the first token is dropped.
template <typename Real>
struct Permutation {
  std::vector<std::int32_t> experts{0, 2, 2, 1};
  std::vector<std::int64_t> slots{1, -1, 0, 2};
  std::vector<Real> weights{0.5f, 0.25f, 0.125f, 2.0f};
  Choices<Real> choices{experts.data(), slots.data(), weights.data(), 2, 2};
  // The choices that rows of places are of: first choice of token 0, then both of token 1.
  std::vector<std::int64_t> rows{1, 6, 5};
};

template <typename Real>
class PermuteBackward : public testing::Test {};
TYPED_TEST_SUITE(PermuteBackward, Reals);

TYPED_TEST(PermuteBackward, PlacesGetWeightedGradients) {
  using Real = TypeParam;
  const Permutation<Real> it;
  Random random(3);
  const std::vector<Real> rows = uniform<Real>(random, 27), gradient = uniform<Real>(random, 6);
  std::vector<Real> rowGradients(27, 99), weightGradients(4, 99);
  combineTokensBackward(it.choices, rows.data(), gradient.data(), 3, 3, rowGradients.data(),
                        weightGradients.data());
  std::vector<Real> expected(27, 99);
  const std::int64_t tokens[] = {0, 1, 1}, choices[] = {0, 2, 3};
  EXPECT_EQ(weightGradients[1], 0);
  for (int i = 0; i < 3; ++i) {
    double product = 0;
    for (std::int64_t m = 0; m < 3; ++m) {
      const std::int64_t at = it.rows[i] * 3 + m;
      expected[at] = it.weights[choices[i]] * gradient[tokens[i] * 3 + m];
      product += static_cast<double>(rows[at]) * gradient[tokens[i] * 3 + m];
    }
    EXPECT_NEAR(weightGradients[choices[i]], product, kRounding<Real>);
  }
  EXPECT_EQ(rowGradients, expected);
}

TYPED_TEST(PermuteBackward, TokensGetTheSumOfTheirPlaces) {
  using Real = TypeParam;
  const Permutation<Real> it;
  Random random(4);
  const std::vector<Real> rows = uniform<Real>(random, 27);
  std::vector<Real> gradient(6, 99);
  scatterTokensBackward(it.choices, rows.data(), 3, 3, gradient.data());
  for (std::int64_t m = 0; m < 3; ++m) {
    EXPECT_EQ(gradient[m], rows[3 + m]);
    EXPECT_EQ(gradient[3 + m], rows[18 + m] + rows[15 + m]);
  }
}

TYPED_TEST(PermuteBackward, ListedChoicesAsPlaces) {
  using Real = TypeParam;
  const Permutation<Real> it;
  Random random(5);
  const std::vector<Real> rows = uniform<Real>(random, 9), gradient = uniform<Real>(random, 6);
  const std::vector<std::int64_t> listed{0, 2, 3};
  std::vector<Real> rowGradients(9), weightGradients(4, 99), input(6, 1);
  addListedBackward(it.choices, listed, rows.data(), gradient.data(), 3, rowGradients.data(),
                    weightGradients.data());
  gatherListedBackward(it.choices, listed, rows.data(), 3, input.data());
  EXPECT_EQ(weightGradients[1], 99);
  for (std::int64_t i = 0; i < 3; ++i) {
    const Real* const ofToken = gradient.data() + listed[i] / 2 * 3;
    double product = 0;
    for (std::int64_t m = 0; m < 3; ++m) {
      EXPECT_EQ(rowGradients[i * 3 + m], it.weights[listed[i]] * ofToken[m]);
      product += static_cast<double>(rows[i * 3 + m]) * ofToken[m];
    }
    EXPECT_NEAR(weightGradients[listed[i]], product, kRounding<Real>);
  }
  for (std::int64_t m = 0; m < 3; ++m) {
    EXPECT_EQ(input[m], 1 + rows[m]);
    EXPECT_EQ(input[3 + m], 1 + rows[3 + m] + rows[6 + m]);
  }
}

}  // namespace
}  // namespace moeccl
