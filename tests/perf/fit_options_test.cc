// The options of moeccl-fit.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>
#include <vector>

#include "perf/common/collectives.h"
#include "perf/fit/options.h"

namespace moeccl::perf {
namespace {

Parsed<FitOptions> parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "moeccl-fit");
  return parseFitOptions(static_cast<int>(arguments.size()), arguments.data());
}

std::vector<std::string> gridTexts(const FitOptions& options, int ranks) {
  std::vector<std::string> texts;
  for (const moecclGridShape_t& shape : gridsFor(options, ranks)) texts.push_back(textOf(shape));
  return texts;
}

TEST(FitOptions, Defaults) {
  const Parsed<FitOptions> parsed = parse({});
  ASSERT_EQ(parsed.error, "");
  EXPECT_EQ(parsed.options.minBytes, 256u);
  EXPECT_EQ(parsed.options.maxBytes, 0u);
  EXPECT_EQ(parsed.options.budgetSeconds, 300);
  EXPECT_EQ(parsed.options.outputFile, "moeccl-profile.json");
  EXPECT_EQ(parsed.options.memory, moecclMemoryHost);
  EXPECT_EQ(parse({"--memory", "cuda"}).options.memory, moecclMemoryCuda);
}

TEST(FitOptions, SomeCollectivesAlone) {
  EXPECT_TRUE(parse({}).options.collectives.empty());
  EXPECT_EQ(parse({"--collectives", "alltoall,allgather"}).options.collectives,
            (std::vector<std::string>{"alltoall", "allgather"}));
  const std::string error = parse({"--collectives", "alltoall,gather"}).error;
  for (const char* part : {"--collectives", "gather", "alltoallv", "combineallgather"})
    EXPECT_NE(error.find(part), std::string::npos) << error;
  EXPECT_NE(parse({"--collectives", "alltoall", "--map", "m.json"}).error.find("--map"),
            std::string::npos);
}

TEST(FitOptions, Grids) {
  const Parsed<FitOptions> parsed = parse({"--grids", "2x4x2,1x2x4:ep,2x4x2"});
  ASSERT_EQ(parsed.error, "");
  EXPECT_EQ(gridTexts(parsed.options, 8), (std::vector<std::string>{"2x4x2", "1x2x4:ep"}));
  try {
    gridsFor(parsed.options, 6);
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("\"2x4x2\" is not for 6 ranks"), std::string::npos)
        << error.what();
  }
}

TEST(FitOptions, GridsOfAnyNumberOfRanks) {
  EXPECT_EQ(gridTexts({}, 1), (std::vector<std::string>{"1x1x1"}));
  EXPECT_EQ(gridTexts({}, 7), (std::vector<std::string>{"1x7x1"}));
  EXPECT_EQ(gridTexts({}, 6), (std::vector<std::string>{"1x6x1", "2x6x1", "1x3x2", "2x3x2"}));
  EXPECT_EQ(gridsFor({}, 16).size(), 16u);
  FitOptions both;
  both.bothOrders = true;
  EXPECT_EQ(gridTexts(both, 6),
            (std::vector<std::string>{"1x6x1", "2x6x1", "1x3x2", "1x3x2:ep", "2x3x2", "2x3x2:ep"}));
}

TEST(FitOptions, MistakesAreNamed) {
  const struct {
    std::vector<const char*> arguments;
    std::vector<const char*> said;
  } mistakes[] = {
      {{"--grids", "2x0x2"}, {"--grids", "2x0x2", "as in 2x4x2"}},
      {{"--grids", "2x4"}, {"\"2x4\""}},
      {{"--grids", "2x4x2:last"}, {"2x4x2:last"}},
      {{"--grids", "2x4x2", "--both-orders"}, {"--grids", "--both-orders"}},
      {{"--min-bytes", "-8"}, {"-8"}},
      {{"--min-bytes", "2K", "--max-bytes", "1K"}, {"--min-bytes", "2048", "1024"}},
      {{"--min-bytes", "100M"}, {"--min-bytes", "104857600", "--max-bytes", "64M"}},
      {{"--min-bytes", "many"}, {"many"}},
      {{"--budget", "0"}, {"--budget"}},
      {{"--steady", "-1"}, {"--steady"}},
      {{"--max-repetitions", "2"}, {"--max-repetitions"}},
      {{"--budget", "nan"}, {"--budget", "nan is no number above 0"}},
      {{"--steady", "nan"}, {"--steady", "nan is no number above 0"}},
      {{"--alternatives", "0"}, {"--alternatives"}},
      {{"--refit", "/nowhere/profile.json"}, {"/nowhere/profile.json"}},
      {{"--refit", "/dev/null", "--budget", "10"}, {"--budget", "--refit"}},
      {{"--refit", "/dev/null", "--force"}, {"--force", "--refit"}},
      {{"--no-such-option"}, {"--no-such-option"}},
      {{"profile.json"}, {"profile.json"}},
  };
  for (const auto& [arguments, said] : mistakes) {
    const std::string error = parse(arguments).error;
    EXPECT_NE(error, "") << arguments.back();
    for (const char* text : said) EXPECT_NE(error.find(text), std::string::npos) << error;
  }
}

TEST(FitOptions, RefusesAnEnvironmentThatDecidesWhatIsMeasured) {
  for (const char* name : {"MOECCL_ALGO", "MOECCL_SCHEDULE", "MOECCL_PROFILE"}) {
    setenv(name, "alltoall=linear", 1);
    EXPECT_NE(parse({}).error.find(name), std::string::npos);
    EXPECT_EQ(parse({"--refit", "/dev/null"}).error, "");
    setenv(name, "", 1);
    EXPECT_EQ(parse({}).error, "");
    unsetenv(name);
  }
}

}  // namespace
}  // namespace moeccl::perf
