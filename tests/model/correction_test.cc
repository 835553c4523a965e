// What samples say beyond the line fitted to them.
#include "src/model/correction.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace moeccl {
namespace {

// seconds = 1 + x
const Fit kLine{{1, 1}, {}};

std::vector<Correction> of(const std::vector<Point>& samples) {
  return correctionsOf(kLine, samples);
}

double secondsAt(const std::vector<Point>& samples, double x) {
  return kLine.at(x) * factorAt(of(samples), x);
}

TEST(Correction, NothingWhereNothingIsKnown) {
  EXPECT_EQ(factorAt({}, 5), 1);
  EXPECT_TRUE(of({}).empty());
  EXPECT_EQ(of({{3, 4, 0.1}}), (std::vector<Correction>{{3, 1}}));
}

TEST(Correction, ExactSamplesAreBelieved) {
  const std::vector<Point> samples = {{3, 4.8, 1e-3}, {1, 1.8, 1e-3}, {7, 8, 1e-3}};
  EXPECT_NEAR(secondsAt(samples, 1), 1.8, 0.01);
  EXPECT_NEAR(secondsAt(samples, 3), 4.8, 0.02);
  EXPECT_NEAR(secondsAt(samples, 7), 8, 1e-9);
  // Between two of them, below and beyond.
  EXPECT_NEAR(secondsAt(samples, 2), 3 * 1.05, 0.02);
  EXPECT_NEAR(secondsAt(samples, 0), 0.9, 0.01);
  EXPECT_NEAR(secondsAt(samples, 100), 101, 1e-6);
}

TEST(Correction, WhatTheSpreadExplainsIsLeftToTheLine) {
  // A tenth too slow: little for what spreads by a third, much for what spreads by a tenth.
  EXPECT_EQ(of({{3, 4.4, 0.4}})[0].factor, 1);
  EXPECT_GT(of({{3, 4.4, 0.1}})[0].factor, 1.08);
  EXPECT_LT(of({{3, 4.4, 0.1}})[0].factor, 1.1);
  // What is not known explains nothing.
  EXPECT_GT(of({{3, 4.4, 0}})[0].factor, 1.09);
  // More of them count more.
  EXPECT_GT(of(std::vector<Point>(9, {3, 4.4, 0.4}))[0].factor, 1.08);
  EXPECT_EQ(of(std::vector<Point>(9, {3, 4.4, 0.4})).size(), 1u);
}

TEST(Correction, PredictionsNeverFall) {
  // 4 seconds at 2, then 2 at 3, known as well: the geometric mean of both.
  const std::vector<Point> alike = {{1, 2, 1e-3}, {2, 4, 1e-3}, {3, 2, 1e-3}, {4, 5, 1e-3}};
  EXPECT_NEAR(secondsAt(alike, 1), 2, 1e-3);
  EXPECT_NEAR(secondsAt(alike, 2), std::sqrt(8), 0.01);
  EXPECT_NEAR(secondsAt(alike, 3), std::sqrt(8), 0.01);
  EXPECT_NEAR(secondsAt(alike, 4), 5, 1e-3);
  // What spreads counts little.
  const std::vector<Point> doubtful = {{2, 4, 0.01}, {3, 2, 0.5}};
  EXPECT_NEAR(secondsAt(doubtful, 2), secondsAt(doubtful, 3), 1e-9);
  EXPECT_GT(secondsAt(doubtful, 3), 3.8);

  std::mt19937 random(7);
  std::lognormal_distribution<double> noise(0, 0.5);
  std::uniform_real_distribution<double> spread(0.001, 0.5);
  for (int turn = 0; turn < 200; ++turn) {
    std::vector<Point> samples;
    for (double x = 1; x < 1e5; x *= 3)
      samples.push_back({x, (1 + x) * noise(random), spread(random)});
    double before = 0;
    for (const Correction& correction : of(samples)) {
      const double seconds = kLine.at(correction.x) * correction.factor;
      EXPECT_GE(seconds, before * (1 - 1e-12));
      EXPECT_GE(correction.factor, (1 - 1e-12) / kMostCorrected);
      EXPECT_LE(correction.factor, kMostCorrected * (1 + 1e-12));
      before = seconds;
    }
  }
}

TEST(Correction, HasBounds) {
  EXPECT_NEAR(of({{3, 4e9, 1e-6}})[0].factor, kMostCorrected, 0.01);
  EXPECT_NEAR(of({{3, 4e-9, 1e-6}})[0].factor, 1 / kMostCorrected, 0.01);
  const Fit nothing{{0, 0}, {}};
  EXPECT_TRUE(correctionsOf(nothing, std::vector<Point>{{3, 1, 0.1}}).empty());
}

// Of a true line, noise brings predictions less far off than of a bent one they save.
TEST(Correction, SavesMoreThanItCosts) {
  std::mt19937 random(5);
  constexpr double kSpread = 0.06;
  std::normal_distribution<double> noise(0, kErrorOfSpread * kSpread);
  const auto errorOf = [&](double bend) {
    double line = 0, corrected = 0;
    for (int turn = 0; turn < 2000; ++turn) {
      std::vector<Point> samples;
      for (double x = 1; x < 1e5; x *= 4)
        samples.push_back({x, (1 + x) * (x == 64 ? bend : 1) * (1 + noise(random)), kSpread});
      line += std::abs(bend - 1);
      corrected += std::abs(factorAt(of(samples), 64) - bend);
    }
    return corrected / 2000 - line / 2000;
  };
  EXPECT_LT(errorOf(1), 0.01);
  EXPECT_LT(errorOf(1.1), -0.07);
  EXPECT_LT(errorOf(0.9), -0.07);
}

}  // namespace
}  // namespace moeccl
