// Profiles: what is found in them, how they differ, and the way to a text and back.
#include "src/select/profile.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "src/error.h"

namespace moeccl {
namespace {

std::vector<Point> line(double alpha, double beta) {
  std::vector<Point> points;
  for (double x = 64; x <= 1 << 24; x *= 4) points.push_back({x, alpha + beta * x, 0.01});
  return points;
}

Profile sample() {
  Profile profile;
  profile.fingerprint = {{4, 4}, "Some \"CPU\" @ 2 GHz", 8, "ucx 1.13.1", "0.1.0"};
  profile.date = "2026-01-02";
  profile.command = "moeccl-fit\t\xc3\xa9";
  profile.add({"alltoall", "b:radix=4", "4+4"}, line(1e-5, 1e-9));
  profile.add({"alltoall", "a", "4+4"}, line(3e-5, 1.0 / 3 * 1e-9));
  profile.add({"alltoall", "a", "4"}, line(1e-6, 1e-10));
  profile.add({"allgather", "a", "4+4"}, line(2e-5, 2e-9));
  std::vector<LocalSample> samples;
  for (double tokens : {64, 128, 512, 1024})
    for (double hidden : {64, 256}) {
      const LocalWork work{tokens, 128, hidden, 8, 2, tokens / 2 + hidden};
      const auto features = featuresOf(work);
      samples.push_back({work, 1e-5 + 1e-10 * features[1] + 2e-10 * features[2], 0.02});
    }
  profile.setLocal(Pass::forward, samples);
  return profile;
}

TEST(Profile, RoundTripsBitForBit) {
  const Profile profile = sample();
  const std::string text = printProfile(profile);
  const Profile again = parseProfile(text);
  EXPECT_EQ(again, profile);
  EXPECT_EQ(printProfile(again), text);
}

TEST(Profile, FindsCurves) {
  const Profile profile = sample();
  ASSERT_TRUE(profile.find("alltoall", "a", "4+4"));
  EXPECT_EQ(profile.find("alltoall", "a", "4+4")->key.algorithm, "a");
  EXPECT_FALSE(profile.find("alltoall", "c", "4+4"));
  EXPECT_FALSE(profile.find("alltoall", "b:radix=4", "4"));
  const auto algorithms = profile.curves("alltoall", "4+4");
  ASSERT_EQ(algorithms.size(), 2u);
  EXPECT_EQ(algorithms[0].key.algorithm, "a");
  EXPECT_EQ(algorithms[1].key.algorithm, "b:radix=4");
  EXPECT_TRUE(profile.curves("alltoall", "2+2").empty());
  EXPECT_NEAR(*profile.seconds("alltoall", "b:radix=4", "4+4", 1e6), 1e-5 + 1e-3, 1e-9);
  EXPECT_FALSE(profile.seconds("alltoall", "a", "5", 1e6));
}

}  // namespace
}  // namespace moeccl
