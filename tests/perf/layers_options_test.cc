// The options of layers in moeccl-perf.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>
#include <vector>

#include "perf/perf/layer_options.h"

namespace moeccl::perf::layers {
namespace {

constexpr const char* kLayer =
    "tokens=512,embedding=2048,hidden=64,experts=64,top-k=8,capacity-factor=0";

Parsed<Options> parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "moeccl-perf layers");
  return parseOptions(static_cast<int>(arguments.size()), arguments.data());
}

TEST(LayersOptions, Defaults) {
  const Parsed<Options> parsed = parse({});
  ASSERT_EQ(parsed.error, "");
  EXPECT_EQ(parsed.options.layers, 18);
  EXPECT_EQ(parsed.options.seed, 1u);
  EXPECT_EQ(parsed.options.scale, 0);
  EXPECT_EQ(parsed.options.topK, 0);
  EXPECT_EQ(parsed.options.schedules, std::vector<std::string>{"all"});
  EXPECT_TRUE(parsed.options.drawsLayers());
  EXPECT_EQ(parsed.options.pass, moecclPassForward);
  EXPECT_EQ(parsed.options.repetitions, 5);
  EXPECT_EQ(parsed.options.turnMs, 20);
  EXPECT_EQ(parsed.options.memoryGib, 4);
}

TEST(LayersOptions, Values) {
  const Parsed<Options> parsed =
      parse({"-l",        "7",          "--seed",       "18446744073709551615",
             "--scale",   "128",        "--top-k",      "2",
             "-r",        "3",          "--pass",       "both",
             "--turn-ms", "0.5",        "--memory-gib", "0.5",
             "--note",    "100 Mbit/s", "--schedules",  "S1,auto",
             "--learn",   "200"});
  ASSERT_EQ(parsed.error, "");
  EXPECT_EQ(parsed.options.layers, 7);
  EXPECT_EQ(parsed.options.seed, ~std::uint64_t{0});
  EXPECT_EQ(parsed.options.scale, 128);
  EXPECT_EQ(parsed.options.topK, 2);
  EXPECT_EQ(parsed.options.pass, moecclPassBoth);
  EXPECT_EQ(parsed.options.turnMs, 0.5);
  EXPECT_EQ(parsed.options.note, "100 Mbit/s");
  EXPECT_EQ(parsed.options.schedules, (std::vector<std::string>{"S1", "auto"}));
  EXPECT_EQ(parsed.options.learn, 200);
}

TEST(LayersOptions, AGivenLayer) {
  const Parsed<Options> parsed = parse({"--layer", kLayer, "--grid", "1x4x2"});
  ASSERT_EQ(parsed.error, "");
  EXPECT_FALSE(parsed.options.drawsLayers());
  EXPECT_EQ(parsed.options.layer.tokens, 512);
  EXPECT_EQ(parsed.options.layer.topK, 8);
  EXPECT_EQ(parsed.options.layer.dropless, 1);
  EXPECT_EQ(parsed.options.grid.nEsp, 2);
  EXPECT_EQ(parsed.options.layers, 1);
  EXPECT_EQ(parsed.options.scale, 1);
}

TEST(LayersOptions, MistakesAreNamed) {
  const struct {
    std::vector<const char*> arguments;
    std::vector<const char*> said;
  } mistakes[] = {
      {{"--layers", "0"}, {"--layers"}},
      {{"--scale", "0"}, {"--scale", "0 is no power of two", "128"}},
      {{"--scale", "12"}, {"--scale", "12 is no power of two"}},
      {{"--scale", "256"}, {"256"}},
      {{"--scale", "-8"}, {"-8"}},
      {{"--scale", "8", "--layer-seconds", "2"}, {"--scale", "--layer-seconds"}},
      {{"--layer-seconds", "0"}, {"--layer-seconds"}},
      {{"--top-k", "0"}, {"--top-k"}},
      {{"--layer", "1,2,3"}, {"--layer", "NAME=VALUE"}},
      {{"--layer", kLayer, "--top-k", "1"}, {"--layer", "--top-k"}},
      {{"--layer", kLayer, "--layers", "3"}, {"--layer"}},
      {{"--grid", "1x4x2"}, {"--grid", "--layer"}},
      {{"--learn", "-1"}, {"--learn"}},
      {{"--pass", "backward"}, {"--pass", "backward"}},
      {{"-r", "0"}, {"--repetitions"}},
      {{"--turn-ms", "-1"}, {"--turn-ms"}},
      {{"--memory-gib", "0"}, {"--memory-gib"}},
      {{"--seed", "-1"}, {"-1"}},
      {{"more"}, {"more"}},
  };
  for (const auto& [arguments, said] : mistakes) {
    const std::string error = parse(arguments).error;
    EXPECT_NE(error, "") << arguments.front() << " " << arguments.back();
    for (const char* text : said) EXPECT_NE(error.find(text), std::string::npos) << error;
  }
}

TEST(LayersOptions, RefusesAnEnvironmentThatFixesCandidates) {
  for (const char* variable : {"MOECCL_ALGO", "MOECCL_SCHEDULE"}) {
    setenv(variable, "", 1);
    EXPECT_EQ(parse({}).error, "") << variable;
    setenv(variable, "alltoall=linear", 1);
    EXPECT_NE(parse({}).error.find(variable), std::string::npos);
    unsetenv(variable);
  }
}

}  // namespace
}  // namespace moeccl::perf::layers
