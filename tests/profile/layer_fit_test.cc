// How much longer the parts of whole layers take than by themselves.
#include "src/profile/layer_fit.h"

#include <gtest/gtest.h>

#include <cmath>

#include "src/error.h"
#include "src/profile/profile.h"

namespace moeccl {
namespace {

const LayerKey kKey{"S1", "forward", "grid"};

constexpr double kLatency = 1e-4;

// Local work takes 1 ns for each of its products; "exchange" of "wide" kLatency and 1 ns per byte,
// by the slower of two algorithms 2 ns, of "narrow" as long and 3 ns.
Profile parts() {
  Profile profile;
  profile.fingerprint = {{4}, "cpu", 2, "ucx 1.13.1", "0.1.0"};
  const auto line = [](double beta) {
    std::vector<Point> points;
    for (double x = 1e3; x <= 1e7; x *= 10) points.push_back({x, kLatency + beta * x, 0});
    return points;
  };
  profile.add({"exchange", "fast", "wide"}, line(1e-9));
  profile.add({"exchange", "slow", "wide"}, line(2e-9));
  profile.add({"exchange", "fast", "narrow"}, line(3e-9));
  std::vector<LocalSample> samples;
  for (const double rows : {10, 100, 1000}) {
    const LocalWork work{0, 1, 1, 0, 0, rows, 0};
    samples.push_back({work, 1e-9 * featuresOf(work)[kProducts], 0});
  }
  Local local{samples, {std::vector<double>(kLocalFeatures), {}}};
  local.fit.coefficients[kProducts] = 1e-9;
  profile.setLocal(Pass::forward, local);
  return profile;
}

LayerSample sampleOf(double products, double bytes, std::vector<std::string> where,
                     double seconds) {
  LayerSample sample{std::vector<double>(kLocalFeatures), {}, seconds, 0};
  sample.local[kProducts] = products;
  sample.exchanges.push_back({"exchange", std::move(where), bytes});
  return sample;
}

TEST(LayerFit, FindsTheFactors) {
  std::vector<LayerSample> samples;
  for (const double products : {1e4, 1e5, 1e6, 1e7})
    for (const double bytes : {1e4, 1e5, 1e6, 1e7})
      samples.push_back(
          sampleOf(products, bytes, {"wide"}, 1.5e-9 * products + 0.6 * kLatency + 0.8e-9 * bytes));
  const LayerFactors factors = fitFactors(parts(), kKey, samples);
  EXPECT_NEAR(factors.local, 1.5, 0.03);
  EXPECT_NEAR(factors.latency, 0.6, 0.03);
  EXPECT_NEAR(factors.bytes, 0.8, 0.02);
  EXPECT_LT(factors.medianError, 0.01);
  EXPECT_LT(factors.worstError, 0.03);
  // Of groups that differ the slowest counts.
  for (LayerSample& sample : samples) sample.exchanges[0].where = {"wide", "narrow"};
  EXPECT_NEAR(fitFactors(parts(), kKey, samples).bytes, 0.8 / 3, 0.02);
}

TEST(LayerFit, WhatSamplesDoNotTellIsOne) {
  EXPECT_EQ(fitFactors(parts(), kKey, {}), LayerFactors{});
  // Next to no local work, and no latency.
  const std::vector<LayerSample> samples(20, sampleOf(1e2, 1e8, {"wide"}, 0.2));
  const LayerFactors factors = fitFactors(parts(), kKey, samples);
  EXPECT_NEAR(factors.local, 1, 0.01);
  EXPECT_NEAR(factors.latency, 1, 0.01);
  EXPECT_NEAR(factors.bytes, 2, 0.05);
}

TEST(LayerFit, LeavesOutWhatThePartsDoNotCover) {
  std::vector<LayerSample> samples(3, sampleOf(1e6, 1e6, {"wide", "elsewhere"}, 1));
  EXPECT_EQ(fitFactors(parts(), kKey, samples), LayerFactors{});
  samples.push_back(sampleOf(1e6, 1e6, {"wide"}, 4e-3));
  const LayerFactors factors = fitFactors(parts(), kKey, samples);
  EXPECT_GT(factors.local, 1.5);
  EXPECT_LT(factors.worstError, 0.25);
  // Nobody measured the local work of that pass.
  EXPECT_EQ(fitFactors(parts(), {"S1", "backward", "grid"}, samples), LayerFactors{});
}

TEST(LayerFit, FactorsStayWithinBounds) {
  for (const double seconds : {1e-9, 1e3}) {
    const std::vector<LayerSample> samples(3, sampleOf(1e6, 1e6, {"wide"}, seconds));
    const LayerFactors factors = fitFactors(parts(), kKey, samples);
    for (const double factor : {factors.local, factors.latency, factors.bytes}) {
      EXPECT_GE(factor, kLeastFactor);
      EXPECT_LE(factor, kMostFactor);
    }
  }
}

TEST(LayerFit, ErrorsStayReadable) {
  const LayerFactors factors =
      fitFactors(parts(), kKey, std::vector<LayerSample>(3, sampleOf(1e30, 0, {"wide"}, 1e-12)));
  EXPECT_EQ(factors.worstError, kMostError);
  EXPECT_EQ(factors.medianError, kMostError);
}

// Latency is what the exchange takes by whatever is the fastest for no bytes.
TEST(LayerFit, OfASlowStartOnlyTheLeastIsLatency) {
  constexpr double kStart = 2 * kLatency;
  Profile profile = parts();
  std::vector<Point> points;
  for (double x = 1e3; x <= 1e7; x *= 10) points.push_back({x, kStart + 0.1e-9 * x, 0});
  profile.add({"exchange", "starts slowly", "wide"}, points);
  EXPECT_NEAR(profile.latency("exchange", "wide"), kLatency, 1e-9);
  EXPECT_TRUE(std::isinf(profile.latency("exchange", "nowhere")));
  std::vector<LayerSample> samples;
  for (const double bytes : {2e5, 5e5, 1e6, 2e6, 4e6, 8e6}) {
    samples.push_back(sampleOf(0, bytes, {"wide"}, 2 * (kStart - 0.5 * kLatency + 0.1e-9 * bytes)));
    samples.back().exchanges.push_back(samples.back().exchanges[0]);
  }
  const LayerFactors factors = fitFactors(profile, kKey, samples);
  EXPECT_NEAR(factors.bytes, 1, 0.05);
  EXPECT_NEAR(factors.latency, 0.5, 0.1);
  EXPECT_LT(factors.worstError, 0.05);
}

TEST(LayerFit, IsFoundByItsKeyAndMadeAnew) {
  Profile profile = parts();
  profile.addLayers(kKey, {sampleOf(1e6, 1e6, {"wide"}, 4e-3)});
  profile.addLayers({"S2", "forward", "grid"}, {sampleOf(1e6, 1e6, {"wide"}, 2e-3)});
  ASSERT_NE(profile.layers(kKey), nullptr);
  EXPECT_GT(profile.layers(kKey)->factors.local, 1.5);
  EXPECT_EQ(profile.layers({"S1", "backward", "grid"}), nullptr);
  EXPECT_THROW(profile.addLayers(kKey, {}), Error);
  const Profile before = profile;
  std::vector<LayerCurve> changed(profile.layers().begin(), profile.layers().end());
  for (LayerCurve& curve : changed) curve.factors = {};
  profile.setLayers(changed);
  EXPECT_NE(profile, before);
  profile.refit();
  EXPECT_EQ(profile.layers(kKey)->factors, before.layers(kKey)->factors);
}

}  // namespace
}  // namespace moeccl
