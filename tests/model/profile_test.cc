// Profiles: what is found in them, how clusters differ, and the way into a file and back.
#include "src/model/profile.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "src/base/error.h"
#include "tests/model/profile_sample.h"
#include "tests/temporary_folder.h"

namespace moeccl {
namespace {

TEST(Profile, FindsCurves) {
  const Profile profile = sampleProfile();
  ASSERT_TRUE(profile.find("alltoall", "a", "4+4"));
  EXPECT_EQ(profile.find("alltoall", "a", "4+4")->key, (CurveKey{"alltoall", "a", "4+4"}));
  EXPECT_FALSE(profile.find("alltoall", "c", "4+4"));
  EXPECT_FALSE(profile.find("alltoall", "b:radix=4", "4"));
  const auto algorithms = profile.curves("alltoall", "4+4");
  ASSERT_EQ(algorithms.size(), 2u);
  EXPECT_EQ(algorithms[0].key.algorithm, "a");
  EXPECT_EQ(algorithms[1].key.algorithm, "b:radix=4");
  EXPECT_EQ(profile.curves("alltoall", "4").size(), 1u);
  EXPECT_TRUE(profile.curves("alltoall", "2+2").empty());
  EXPECT_TRUE(Profile().curves("alltoall", "4").empty());
  EXPECT_EQ(profile.curves().size(), 4u);
  EXPECT_NEAR(profile.find("alltoall", "b:radix=4", "4+4")->seconds(1e6), 1e-5 + 1e-3, 1e-9);
  EXPECT_EQ(profile.find("alltoall", "a", "5"), nullptr);
}

// Whatever the last two samples say.
TEST(Profile, BeyondSamplesACurveGrowsAsItIsTold) {
  const CurveKey key{"alltoall", "linear", "4"};
  Profile profile;
  profile.add(key, {{1000, 1e-3, 0.1}, {3000, 1.9e-3, 0.1}, {9000, 2e-3, 0.1}});
  const double last = profile.find(key.collective, key.algorithm, key.where)->seconds(9000);
  profile.setBeyond(key, 1e-7);
  const auto at = [&](double bytes) {
    return profile.find(key.collective, key.algorithm, key.where)->seconds(bytes);
  };
  EXPECT_DOUBLE_EQ(at(9000), last);
  EXPECT_DOUBLE_EQ(at(10000), last + 1e-7 * 1000);
  EXPECT_DOUBLE_EQ(at(1e9), last + 1e-7 * (1e9 - 9000));
  profile.refit();  // what it was told is of other samples
  EXPECT_EQ(profile.find(key.collective, key.algorithm, key.where)->beyond, 0);
}

// Samples that were disturbed, or too small to tell a slope, are no reason to expect a gigabyte at
// once.
TEST(Profile, BeyondSamplesWithoutSlopeEachByteTakesItsTime) {
  Profile profile;
  std::vector<Point> flat, sloped;
  for (double x = 256; x < 2e6; x *= 3) {
    flat.push_back({x, 0.03, 0.3});
    sloped.push_back({x, 1e-3 + 1e-8 * x, 0.01});
  }
  std::swap(flat.front(), flat.back());
  profile.add({"c", "flat", "w"}, flat);
  profile.add({"c", "sloped", "w"}, sloped);
  const double largest = flat.front().x;
  EXPECT_NEAR(profile.find("c", "flat", "w")->seconds(largest), 0.03, 1e-6);
  EXPECT_NEAR(profile.find("c", "flat", "w")->seconds(100 * largest), 3, 1e-4);
  EXPECT_NEAR(profile.find("c", "sloped", "w")->seconds(100 * largest), 1e-3 + 1e-6 * largest,
              1e-2);
}

// Where what was measured bends or jumps, between two samples, nobody knows.
TEST(Profile, BetweenSamplesPredictionsAreStraight) {
  for (const double spread : {0.01, 0.0}) {
    Profile profile;
    std::vector<Point> points;
    for (double x = 250; x < 1e6; x *= 2) points.push_back({x, std::max(1e-3, 2.2e-7 * x), spread});
    profile.add({"c", "knee", "w"}, points);
    const Curve& curve = *profile.find("c", "knee", "w");
    const double low = curve.seconds(4000), high = curve.seconds(8000);
    EXPECT_NEAR(low, 1e-3, 2e-5);
    EXPECT_NEAR(high, 1.76e-3, 4e-5);
    EXPECT_NEAR(curve.seconds(5000), 0.75 * low + 0.25 * high, 1e-9);
    EXPECT_NEAR(curve.seconds(500), 1e-3, 2e-5);
    // Beyond the last two, as between them.
    EXPECT_NEAR(curve.seconds(4e6) / 0.88, 1, 0.02);
    // Also where only some samples tell their spread.
    for (std::size_t i = 1; i + 1 < points.size(); ++i) points[i].spread = 0;
    profile.add({"c", "knee", "elsewhere"}, points);
    EXPECT_NEAR(profile.find("c", "knee", "elsewhere")->seconds(2000), 1e-3, 2e-5);
  }
}

// Times of an algorithm as a user never sees them: lines that bend, and jump where protocols
// change.
class Truth {
 public:
  explicit Truth(std::mt19937& random) {
    std::normal_distribution<double> normal(0, 1);
    std::uniform_real_distribution<double> uniform(0, 1);
    pieces_[0] = {0, 2e-5 * std::exp(0.7 * normal(random)), 1e-9 * std::exp(0.7 * normal(random))};
    double from = 256;
    for (std::size_t i = 1; i < pieces_.size(); ++i) {
      from *= std::exp(6 * uniform(random));
      const bool jumps = uniform(random) < 0.5, bends = uniform(random) < 0.5;
      pieces_[i] = {from, at(from, i) * (jumps ? 1 + uniform(random) : 1),
                    pieces_[i - 1].slope * (bends ? std::exp(0.7 * normal(random)) : 1)};
    }
  }
  double at(double x) const { return at(x, pieces_.size()); }

 private:
  struct Piece {
    double from, seconds, slope;
  };
  double at(double x, std::size_t pieces) const {
    std::size_t last = 0;
    for (std::size_t i = 1; i < pieces; ++i)
      if (x >= pieces_[i].from) last = i;
    return pieces_[last].seconds + pieces_[last].slope * (x - pieces_[last].from);
  }

  std::array<Piece, 3> pieces_{};
};

// What choices by noisy samples cost in the mean, over the best of four such algorithms.
TEST(Profile, ChoosesAmongCurvesThatBendAndJump) {
  struct Case {
    double spread, atSamples, between, beyond;
  };
  constexpr double kFactor = 3;  // of the sizes that are measured
  for (const Case& most :
       {Case{0.02, 0.001, 0.01, 0.03}, {0.1, 0.002, 0.01, 0.03}, {0.3, 0.01, 0.012, 0.045}}) {
    std::mt19937 random(1);
    std::normal_distribution<double> noise(0, kErrorOfSpread * most.spread);
    double atSamples = 0, between = 0, beyond = 0;
    constexpr int kRounds = 200;
    for (int round = 0; round < kRounds; ++round) {
      std::vector<Truth> algorithms;
      Profile profile;
      for (int i = 0; i < 4; ++i) {
        const Truth& truth = algorithms.emplace_back(random);
        std::vector<Point> samples;
        for (double x = 64; x < 1e6; x *= kFactor)
          samples.push_back({x, truth.at(x) * std::exp(noise(random)), most.spread});
        profile.add({"c", std::to_string(i), "w"}, samples);
      }
      const auto regret = [&](double x) {
        double best = 1e30, predicted = 1e30, chosen = 0;
        for (std::size_t i = 0; i < algorithms.size(); ++i) {
          const double seconds = algorithms[i].at(x);
          best = std::min(best, seconds);
          if (const double its = profile.find("c", std::to_string(i), "w")->seconds(x);
              its < predicted) {
            predicted = its;
            chosen = seconds;
          }
        }
        return (chosen / best - 1) / kRounds;
      };
      for (double x = 64; x < 1e5; x *= kFactor) {
        atSamples += regret(x) / 7;
        between += regret(1.7 * x) / 7;
      }
      beyond += (regret(8) + regret(2e6) + regret(8e6)) / 3;
    }
    EXPECT_LT(atSamples, most.atSamples) << most.spread;
    EXPECT_LT(between, most.between) << most.spread;
    EXPECT_LT(beyond, most.beyond) << most.spread;
  }
}

TEST(Profile, ASampleWithoutBytesTellsNoSlope) {
  Profile profile;
  profile.add({"c", "empty", "w"}, {{0, 0.03, 0}});
  EXPECT_NEAR(profile.find("c", "empty", "w")->seconds(1e6), 0.03, 1e-6);
}

TEST(Profile, PredictsLocalWork) {
  const Profile profile = sampleProfile();
  const LocalWork work{256, 128, 512, 8, 2, 300, 8};
  const double truth = 1e-5 + 1e-10 * 256 * 128 * 8 + 2e-10 * 300 * 128 * 512;
  EXPECT_NEAR(profile.local(Pass::forward)->fit.at(featuresOf(work)) / truth, 1, 1e-6);
  EXPECT_NEAR(profile.local(Pass::backward)->fit.at(featuresOf(work)) / truth, 2, 1e-6);
  EXPECT_FALSE(Profile().local(Pass::forward));
}

TEST(Profile, FitsAgainFromItsSamples) {
  Profile profile = sampleProfile();
  std::vector<Curve> curves(profile.curves().begin(), profile.curves().end());
  for (Curve& curve : curves) curve.fit = {{1, 1}, {}};
  std::ranges::reverse(curves);
  profile.setCurves(std::move(curves));
  profile.setLocal(Pass::forward, Local{profile.local(Pass::forward)->samples, {{1, 1, 1, 1}, {}}});
  EXPECT_NE(profile, sampleProfile());
  profile.refit();
  EXPECT_EQ(profile, sampleProfile());
}

// In any order, and of a curve that is fitted already.
TEST(Profile, SamplesThatAreAddedCountOnceFitted) {
  const CurveKey key{"alltoall", "linear", "4"};
  Profile profile, whole;
  profile.add(key, {{1000, 1e-3, 0.1}, {9000, 2e-3, 0.1}});
  const Profile before = profile;
  profile.addSample(key, {3000, 1.9e-3, 0.1});
  profile.addSample({"alltoall", "bruck", "4"}, {3000, 1e-3, 0.1});
  EXPECT_EQ(profile.find("alltoall", "linear", "4")->fit,
            before.find("alltoall", "linear", "4")->fit);
  profile.refit();
  whole.add(key, {{1000, 1e-3, 0.1}, {3000, 1.9e-3, 0.1}, {9000, 2e-3, 0.1}});
  whole.add({"alltoall", "bruck", "4"}, {{3000, 1e-3, 0.1}});
  EXPECT_EQ(profile, whole);
}

TEST(Profile, RefusesCurvesThatAreThere) {
  Profile profile = sampleProfile();
  try {
    profile.add({"alltoall", "a", "4"}, lineOf(1, 1));
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "the profile has two curves of alltoall, algorithm a, group 4");
  }
  EXPECT_EQ(profile, sampleProfile());
}

TEST(Fingerprint, SaysWhatDiffers) {
  const Fingerprint here{{4, 4, 4, 4}, "A", 8, "ucx 1.13.1", "0.1.3"};
  EXPECT_EQ(differences(here, here), "");
  Fingerprint there = here;
  there.library = "0.1.0";
  there.transport = "ucx 1.13.0";
  there.network = "100 Mb/s";  // here it is not known
  EXPECT_EQ(differences(here, there), "");
  EXPECT_EQ(differences(there, here), "");
  there.transport = "ucx 1.14.1";
  EXPECT_EQ(differences(here, there),
            "it was made for transport \"ucx 1.14.1\", here is \"ucx 1.13.1\"");
  there.transport = "ucx 1.13.0";
  there.ranksPerNode = {4, 4};
  EXPECT_EQ(differences(here, there),
            "it was made for 2 nodes of 4 ranks, here are 4 nodes of 4 ranks");
  there.ranksPerNode = {1};
  EXPECT_EQ(differences(there, here),
            "it was made for 4 nodes of 4 ranks, here is 1 node of 1 rank");
  there.ranksPerNode = {3, 1, 2};
  there.processor = "B";
  there.processorsPerNode = 2;
  there.transport = "loopback";
  there.library = "0.2.0";
  EXPECT_EQ(differences(here, there),
            "it was made for 3 nodes of 3, 1, 2 ranks, here are 4 nodes of 4 ranks; for processors "
            "\"B\", here are \"A\"; for 2 processors per node, here are 8; for transport "
            "\"loopback\", here is \"ucx 1.13.1\"; for moeccl 0.2.0, here is 0.1.3");
  there.ranksPerNode.assign(1000, 4);
  there.ranksPerNode[0] = 5;
  EXPECT_LT(differences(here, there).size(), 300u);
}

// What cannot be read on one of them may be the same.
TEST(Fingerprint, ComparesWhatIsKnownOfNetworks) {
  Fingerprint here{{4, 4}, "A", 8, "tcp", "0.1.3"}, there = here;
  const auto differ = [&](const char* one, const char* other) {
    here.network = one;
    there.network = other;
    EXPECT_EQ(differences(here, there).empty(), differences(there, here).empty());
    return !differences(here, there).empty();
  };
  EXPECT_TRUE(differ("1000 Mb/s MTU 1500", "100 Mb/s MTU 1500"));
  EXPECT_TRUE(differ("1000 Mb/s MTU 1500", "1000 Mb/s MTU 9000"));
  EXPECT_TRUE(differ("MTU 9000", "1000 Mb/s MTU 1500"));
  EXPECT_FALSE(differ("MTU 9000", "1000 Mb/s MTU 9000"));
  EXPECT_FALSE(differ("1000 Mb/s", "1000 Mb/s MTU 9000"));
  EXPECT_TRUE(differ("MTU 9000, mlx5_0 200 Gb/sec", "MTU 9000, mlx5_0 100 Gb/sec"));
  EXPECT_TRUE(differ("mlx5_0 200 Gb/sec, mlx5_1 200 Gb/sec", "MTU 9000, mlx5_0 200 Gb/sec"));
  EXPECT_FALSE(differ("mlx5_0 200 Gb/sec", "100 Mb/s MTU 9000, mlx5_0 200 Gb/sec"));
}

TEST(ProfileText, RoundTripsBitForBit) {
  Profile profile = sampleProfile();
  profile.add({"dispatch", "numbers", "4"},
              {{0, std::nextafter(1e-12, 1), 1.0 / 3}, {1.5, 0.1, 0}, {1e19, 1e12, 5e-324}});
  const std::string text = printProfile(profile);
  const Profile again = parseProfile(text);
  EXPECT_EQ(again, profile);
  EXPECT_EQ(printProfile(again), text);
  EXPECT_EQ(again.fingerprint.processor, "Some \"CPU\" @ 2 GHz");
  Profile wired = profile;
  wired.fingerprint.network = "1000 Mb/s MTU 1500";
  wired.setBeyond({"dispatch", "numbers", "4"}, 1e-9 / 3);
  EXPECT_EQ(wired.find("dispatch", "numbers", "4")->beyond, 1e-9 / 3);
  EXPECT_EQ(parseProfile(printProfile(wired)), wired);
  // Without any measurement.
  Profile empty;
  empty.fingerprint = profile.fingerprint;
  EXPECT_EQ(parseProfile(printProfile(empty)), empty);
}

TEST(ProfileText, IsForPeopleToo) {
  const std::string text = printProfile(sampleProfile());
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LT(line.size(), 240u) << line;
  EXPECT_NE(text.find("\n    {\"bytes\": 64, \"seconds\": 1.0064e-06, \"spread\": 0.01}"),
            std::string::npos)
      << text;
}

// `text` with the first `what` after `after` replaced.
std::string replaced(std::string text, std::string_view after, std::string_view what,
                     std::string_view by) {
  const std::size_t from = text.find(after);
  const std::size_t at = text.find(what, from);
  EXPECT_NE(from, std::string::npos) << after;
  EXPECT_NE(at, std::string::npos) << what;
  return at == std::string::npos ? text : text.replace(at, what.size(), by);
}

std::string errorOf(std::string_view text) {
  try {
    parseProfile(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.result(), moecclInvalidArgument);
    return error.what();
  }
  return "";
}

struct Malformed {
  const char *after, *what, *by, *error;
};

// The curves are, in this order, those of group "4", of "4+4", and the exchange.
constexpr Malformed kMalformed[] = {
    {"", "\"schemaVersion\": 2", "\"schemaVersion\": 7",
     "schemaVersion is 7; this library reads 2"},
    {"", "\"schemaVersion\": 2", "\"schemaVersion\": 1.0",
     "schemaVersion is 1.0; it must be a whole number between 0 and 2147483647"},
    {"", "\"schemaVersion\": 2,", "", "the profile has no \"schemaVersion\""},
    {"", "moeccl-profile", "moeccl-perf",
     "schema is \"moeccl-perf\", not \"moeccl-profile\": this is another kind of file"},
    {"", "[4,4]", "[]",
     "fingerprint.ranksPerNode has 0 values; it must have between 1 and 1048576"},
    {"", "[4,4]", "[4,0]",
     "fingerprint.ranksPerNode[1] is 0; it must be a whole number between 1 and 2147483647"},
    {"", "[4,4]", "[4,4294967300]",
     "fingerprint.ranksPerNode[1] is 4294967300; it must be a whole number between 1 and "
     "2147483647"},
    {"", "[4,4]", "4", "fingerprint.ranksPerNode is 4; it must be an array"},
    {"", "\"ucx 1.13.1\"", "null", "fingerprint.transport is null; it must be a text"},
    {"curves", "\"alltoall\"", "17", "curves[0].collective is 17; it must be a text"},
    {"fit", "\"alpha\": ", "\"alpha\": -1, \"x\": ",
     "curves[0].fit.alpha is -1; it must be a number between 0 and 1e+30"},
    {"\"r2\"", "\"r2\": ", "\"r2\": 11, \"x\": ",
     "curves[0].fit.r2 is 11; it must be a number between -1e+30 and 1"},
    {"\"r2\"", "\"medianError\": ", "\"medianError\": true, \"x\": ",
     "curves[0].fit.medianError is true; it must be a number between 0 and 1e+30"},
    {"samples", "\"seconds\": 1.0064e-06", "\"seconds\": \"NaN\"",
     "curves[0].samples[0].seconds is \"NaN\"; it must be a number between 1e-12 and 1e+12"},
    {"samples", "\"seconds\": 1.0064e-06", "\"seconds\": null",
     "curves[0].samples[0].seconds is null; it must be a number between 1e-12 and 1e+12"},
    {"samples", "\"seconds\": 1.0064e-06", "\"seconds\": -1",
     "curves[0].samples[0].seconds is -1; it must be a number between 1e-12 and 1e+12"},
    {"samples", "\"seconds\": 1.0064e-06", "\"seconds\": 0",
     "curves[0].samples[0].seconds is 0; it must be a number between 1e-12 and 1e+12"},
    {"samples", "\"seconds\": 1.0064e-06", "\"seconds\": [1]",
     "curves[0].samples[0].seconds is an array; it must be a number between 1e-12 and 1e+12"},
    {"samples", "\"bytes\": 512", "\"bytes\": 1e20",
     "curves[0].samples[1].bytes is 1e+20; it must be a number between 0 and 1e+19"},
    {"samples", "\"bytes\": 512", "\"bytes\": 1e-40",
     "curves[0].samples[1].bytes is 1e-40; it must be 0, or a number between 1 and 1e+19"},
    {"samples", "\"bytes\": 64, ", "", "curves[0].samples[0] has no \"bytes\""},
    {"samples", "\"spread\": 0.01", "\"spread\": {}",
     "curves[0].samples[0].spread is an object; it must be a number between 0 and 1e+06"},
    {"\"r2\"", "\"where\": \"4+4\"", "\"where\": \"4\"",
     "the profile has two curves of alltoall, algorithm a, group 4"},
    {"local", "\"gate\": ", "\"gates\": ", "local.forward.fit.seconds has no \"gate\""},
    {"backward", "\"rows\": ", "\"rows\": -",
     "local.backward.samples[0].rows is -96; it must be a number between 0 and 1e+30"},
    {"backward", "\"rows\": ", "\"rows\": 1e-30, \"x\": ",
     "local.backward.samples[0].rows is 1e-30; it must be 0, or a number between 1 and 1e+30"},
    {"links", "\"costs\": ", "\"cost\": ", "links has no \"costs\""},
    {"links", "\"betaUplink\": ", "\"betaUplink\": -1, \"x\": ",
     "links.costs.betaUplink is -1; it must be a number between 0 and 1e+30"},
};

TEST(ProfileText, NamesWhatIsWrong) {
  const std::string text = printProfile(sampleProfile());
  for (const Malformed& malformed : kMalformed)
    EXPECT_EQ(errorOf(replaced(text, malformed.after, malformed.what, malformed.by)),
              malformed.error);
  EXPECT_EQ(errorOf("[]"), "the profile is an array; it must be an object");
  EXPECT_EQ(errorOf("null"), "the profile is null; it must be an object");
}

TEST(ProfileText, NumbersAreThoseOfJson) {
  const std::string text = printProfile(sampleProfile());
  for (const char* number : {"NaN", "nan", "Infinity", "-Infinity", "1e999", "-1e999", "0x10", "+1",
                             "01", "1.", ".5", "1e", "--1", "1,5", "1_000", ""}) {
    const std::string error = errorOf(replaced(text, "samples", "1.0064e-06", number));
    EXPECT_TRUE(error.starts_with("this is no JSON: ")) << number << ": " << error;
  }
  EXPECT_EQ(errorOf(replaced(text, "samples", "1.0064e-06", "1e999")),
            "this is no JSON: number overflow parsing '1e999'");
}

TEST(ProfileText, IsStrictJson) {
  const std::string text = printProfile(sampleProfile());
  for (const std::string& wrong :
       {std::string(), std::string(" \n"), std::string(1, '\0'), text + "{}", text + ",",
        text + std::string(1, '\0'), "// profile\n" + text, replaced(text, "", "}", ",}"),
        replaced(text, "", "2026", "20\xff"), replaced(text, "", "2026", "20\n"),
        replaced(text, "", "2026", "\\ud800"), replaced(text, "", "\"date\"", "date")})
    EXPECT_TRUE(errorOf(wrong).starts_with("this is no JSON: ")) << wrong << errorOf(wrong);
  EXPECT_EQ(
      errorOf("{\n \"a\": ?}"),
      "this is no JSON: line 2, column 7: syntax error while parsing value - invalid literal; "
      "last read: '\"a\": ?'");
  // What was read of a value is not repeated at length.
  EXPECT_LT(errorOf("{\"" + std::string(100000, 'a')).size(), 400u);
}

TEST(ProfileText, KeysComeOnce) {
  const std::string text = printProfile(sampleProfile());
  EXPECT_EQ(errorOf(replaced(text, "samples", "\"bytes\"", "\"seconds\": 1, \"bytes\"")),
            "the key \"seconds\" comes twice in an object, at or after curves[0].samples[0].bytes");
  EXPECT_EQ(errorOf("{\"a\": 1, \"\\u0061\": 2}"),
            "the key \"a\" comes twice in an object, at or after a");
  const std::string longKey = '"' + std::string(60000, 'k') + "\": 1";
  EXPECT_LT(errorOf("{" + longKey + ", " + longKey + "}").size(), 300u);
  EXPECT_EQ(errorOf("{\"\": 1, \"\": 2}"), "the key \"\" comes twice in an object");
}

TEST(ProfileText, IgnoresWhatItDoesNotKnow) {
  const std::string text = printProfile(sampleProfile());
  const std::string more =
      replaced(text, "", "\"date\"", "\"later\": [{\"a\": [null, true]}, \"b\"], \"date\"");
  EXPECT_EQ(parseProfile(replaced(more, "samples", "\"bytes\"", "\"median\": null, \"bytes\"")),
            sampleProfile());
}

TEST(ProfileText, LocalWorkAndLinksMayBeMissing) {
  std::string text = printProfile(sampleProfile());
  const std::size_t local = text.find("\"local\"");
  const Profile without = parseProfile(text.substr(0, local) + "\"later\": 1}");
  EXPECT_FALSE(without.local(Pass::forward));
  EXPECT_FALSE(without.links);
  const std::size_t backward = text.find("\"backward\"");
  const Profile half = parseProfile(text.substr(0, backward) + "\"later\": 1}}");
  EXPECT_TRUE(half.local(Pass::forward));
  EXPECT_FALSE(half.local(Pass::backward));
}

// Tests of every byte have many to try: one in five by default.
constexpr std::size_t kFew = 5, kAll = 1;

void whatIsCutOffIsAnError(std::size_t step) {
  std::string text = printProfile(sampleProfile());
  text.pop_back();  // the last line's end
  EXPECT_EQ(errorOf(text), "");
  for (std::size_t length = 0; length < text.size(); length += step)
    ASSERT_TRUE(errorOf(std::string_view(text).substr(0, length)).starts_with("this is no JSON: "))
        << length;
}
TEST(ProfileText, WhatIsCutOffIsAnError) { whatIsCutOffIsAnError(kFew); }
TEST(ProfileText, SlowWhatIsCutOffIsAnError) { whatIsCutOffIsAnError(kAll); }

// Whatever one byte is replaced by: an error, or a profile that can be written and read.
void survivesWrongBytes(std::size_t step) {
  const std::string text = printProfile(sampleProfile());
  int accepted = 0, refused = 0;
  for (std::size_t at = 0; at < text.size(); at += step)
    for (const char wrong : {'0', '-', 'e', '"', '}', '\0', '\xc3'}) {
      std::string changed = text;
      changed[at] = wrong;
      try {
        const Profile profile = parseProfile(changed);
        if (at % 15 == 0) {
          ASSERT_EQ(parseProfile(printProfile(profile)), profile);
        }
        ++accepted;
      } catch (const Error& error) {
        ASSERT_EQ(error.result(), moecclInvalidArgument) << error.what();
        ++refused;
      }
    }
  EXPECT_GT(accepted, 500);
  EXPECT_GT(refused, 500);
}
TEST(ProfileText, SurvivesWrongBytes) { survivesWrongBytes(kFew); }
TEST(ProfileText, SlowSurvivesEveryWrongByte) { survivesWrongBytes(kAll); }

// `count` times `item`, with commas.
std::string list(std::size_t count, const std::string& item) {
  std::string text = "[";
  text.reserve(count * (item.size() + 1));
  for (std::size_t i = 0; i < count; ++i) {
    if (i > 0) text += ',';
    text += item;
  }
  return text + "]";
}

TEST(ProfileText, HasLimits) {
  const std::string text = printProfile(sampleProfile());
  const auto with = [&](const std::string& member) {
    return replaced(text, "", "\"date\"", "\"later\": " + member + ", \"date\"");
  };
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_EQ(errorOf(with(nested(15))), "");
  const std::string deep = "arrays and objects are nested more than 16 deep, at or after later";
  EXPECT_TRUE(errorOf(with(nested(16))).starts_with(deep)) << errorOf(with(nested(16)));
  EXPECT_TRUE(errorOf(std::string(1 << 20, '[')).starts_with(deep.substr(0, 47)));
  std::string objects;
  for (int i = 0; i < 1 << 18; ++i) objects += "{\"a\":";
  EXPECT_TRUE(errorOf(objects).starts_with(deep.substr(0, 47)));

  const auto quoted = [](std::size_t length) {
    std::string some(length + 2, 'a');
    some.front() = some.back() = '"';
    return some;
  };
  EXPECT_EQ(errorOf(with(quoted(65536))), "");
  EXPECT_EQ(errorOf(with(quoted(65537))),
            "a text is 65537 bytes long; at most 65536 are allowed, at or after later");
  EXPECT_EQ(errorOf(with("{" + quoted(70000) + ": 1}")),
            "a key is 70000 bytes long; at most 65536 are allowed, at or after later");

  EXPECT_EQ(errorOf(with(list(2000000, "0"))), "");
  EXPECT_TRUE(errorOf(with(list(2097152, "0")))
                  .starts_with("there are more than 2097152 values, at or after later[2097"));
  EXPECT_EQ(errorOf(std::string(kMaxProfileBytes + 1, ' ')),
            "there are 67108865 bytes; at most 67108864 are allowed");

  const std::size_t curves = text.find("\"curves\""), local = text.find("\"local\"");
  const auto withCurves = [&](const std::string& some) {
    return text.substr(0, curves) + "\"curves\": " + some + ", " + text.substr(local);
  };
  EXPECT_EQ(errorOf(withCurves(list(65537, "{}"))),
            "curves has 65537 values; it must have between 0 and 65536");
  const std::string curve = R"({"collective":"a","algorithm":"b","where":"c","fit":{"alpha":0,)"
                            R"("beta":0,"r2":0,"medianError":0,"worstError":0},"samples":)";
  EXPECT_EQ(errorOf(withCurves("[" + curve + "[]}]")),
            "curves[0].samples has 0 values; it must have between 1 and 65536");
  EXPECT_EQ(errorOf(withCurves("[" + curve + list(65537, "1") + "}]")),
            "curves[0].samples has 65537 values; it must have between 1 and 65536");
}

// Several hundred thousand samples load; a million, one a line, are too many and are said to be.
TEST(ProfileText, WideManyLines) {
  const auto profileOf = [](std::size_t curves, std::size_t samples) {
    Profile profile;
    profile.fingerprint = sampleProfile().fingerprint;
    std::vector<Curve> many;
    for (std::size_t i = 0; i < curves; ++i) {
      Curve curve{{"alltoall", std::to_string(i), "4"}, {}, {{1e-6, 1e-9}, {}}};
      for (std::size_t x = 0; x < samples; ++x)
        curve.samples.push_back({static_cast<double>(x), 1e-6 + 1e-9 * static_cast<double>(x), 0});
      many.push_back(std::move(curve));
    }
    profile.setCurves(std::move(many));
    return profile;
  };
  const Profile large = profileOf(6, 50000);
  EXPECT_EQ(parseProfile(printProfile(large)), large);
  try {
    printProfile(profileOf(20, 50000));
    FAIL();
  } catch (const Error& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("there are more than 2097152 values"))
        << error.what();
  }
}

TEST(ProfileText, WhatCannotBeReadIsNotWritten) {
  const auto errorOfPrinting = [](const Profile& profile) -> std::string {
    try {
      printProfile(profile);
    } catch (const Error& error) {
      EXPECT_EQ(error.result(), moecclInvalidArgument);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(errorOfPrinting({}),
            "fingerprint.ranksPerNode has 0 values; it must have between 1 and 1048576");
  Profile profile = sampleProfile();
  profile.command = "\xff";
  EXPECT_EQ(errorOfPrinting(profile), "a text in the profile is no UTF-8");
  profile.command = std::string(70000, 'a');
  EXPECT_NE(errorOfPrinting(profile), "");
  profile = sampleProfile();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  profile.setCurves({{{"a", "b", "c"}, {{1, nan, 0}}, {{1, 1}, {}}}});
  EXPECT_EQ(errorOfPrinting(profile),
            "curves[0].samples[0].seconds is null; it must be a number between 1e-12 and 1e+12");
}

// A folder of its own, and what is in it.
class ProfileFile : public testing::Test {
 protected:
  std::string path(const char* name) const { return folder_ / name; }
  std::size_t files() const { return test::filesIn(folder_); }
  static std::string errorOfLoading(const std::string& path, moecclResult_t result) {
    try {
      loadProfile(path);
    } catch (const Error& error) {
      EXPECT_EQ(error.result(), result);
      return error.what();
    }
    return "";
  }

  const test::TemporaryFolder own_;
  const std::filesystem::path folder_ = own_.path();
};

TEST_F(ProfileFile, IsSavedAndLoaded) {
  const Profile profile = sampleProfile();
  saveProfile(profile, path("a"));
  EXPECT_EQ(loadProfile(path("a")), profile);
  Profile other = profile;
  other.date = "later";
  saveProfile(other, path("a"));
  EXPECT_EQ(loadProfile(path("a")), other);
  EXPECT_EQ(files(), 1u);
}

TEST_F(ProfileFile, IsKeptWhereSavingFails) {
  saveProfile(sampleProfile(), path("a"));
  Profile wrong = sampleProfile();
  wrong.fingerprint.ranksPerNode.clear();
  EXPECT_THROW(saveProfile(wrong, path("a")), Error);
  EXPECT_EQ(loadProfile(path("a")), sampleProfile());
  // A folder cannot be replaced by a file; nothing may be left beside it.
  std::filesystem::create_directory(path("b"));
  try {
    saveProfile(sampleProfile(), path("b"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.result(), moecclSystemError);
    EXPECT_EQ(error.what(), "cannot write the profile " + path("b") + ": Is a directory");
  }
  EXPECT_EQ(files(), 2u);
  EXPECT_THROW(saveProfile(sampleProfile(), path("no/folder")), Error);
}

TEST_F(ProfileFile, NamesTheFileAndTheReason) {
  EXPECT_EQ(errorOfLoading(path("none"), moecclSystemError),
            "cannot read the profile " + path("none") + ": No such file or directory");
  EXPECT_EQ(errorOfLoading(folder_, moecclInvalidArgument),
            "the profile " + folder_.string() + " is no regular file");
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(errorOfLoading(path("pipe"), moecclInvalidArgument),
            "the profile " + path("pipe") + " is no regular file");
  std::ofstream(path("text")) << "{\"schema\": 1}";
  EXPECT_EQ(errorOfLoading(path("text"), moecclInvalidArgument),
            "the profile " + path("text") + ": schema is 1; it must be a text");
  // Larger than memory: refused by its size.
  std::ofstream(path("huge")) << "{";
  std::filesystem::resize_file(path("huge"), std::uintmax_t{1} << 40);
  EXPECT_EQ(errorOfLoading(path("huge"), moecclInvalidArgument),
            "the profile " + path("huge") +
                ": there are 1099511627776 bytes; at most 67108864 are allowed");
}

}  // namespace
}  // namespace moeccl
