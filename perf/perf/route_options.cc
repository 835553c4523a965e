// Reads the arguments of moeccl-perf route and checks them together.
#include "perf/perf/route_options.h"

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <map>

#include "perf/common/options.h"

namespace moeccl::perf {
namespace {

const std::map<std::string, DataType> kTypes = {{"bfloat16", {"bfloat16", moecclBfloat16, 2}},
                                                {"half", {"half", moecclFloat16, 2}},
                                                {"float", {"float", moecclFloat32, 4}},
                                                {"fp8_e4m3", {"fp8_e4m3", moecclFloat8e4m3, 1}},
                                                {"fp8_e5m2", {"fp8_e5m2", moecclFloat8e5m2, 1}}};

}  // namespace

Parsed<RouteOptions> parseRouteOptions(int argc, const char* const* argv) {
  Parsed<RouteOptions> parsed;
  RouteOptions& options = parsed.options;
  options.commandLine.assign(argv, argv + argc);
  std::string dataType = options.dataType.name;
  CLI::App app(
      "Measures routes: Begin, Dispatch and Combine, for several algorithms in turns. Ranks "
      "come as in moeccl-perf.",
      "moeccl-perf route");
  app.add_option("--algorithms", options.algorithms,
                 "comma-separated: node, rank, flat, auto for the library's choice, or latency for "
                 "its latency mode (default: all of them; latency for up to 128 tokens). With "
                 ":fp8_e4m3 or :fp8_e5m2 behind it rows travel as that")
      ->delimiter(',');
  app.add_option("--routing", options.routing,
                 "even: random experts. zipf: expert i as often as 1 / (i + 1). hot: each token "
                 "has expert 0 among its own. text: by the words of --text")
      ->check(CLI::IsMember({"even", "zipf", "hot", "text"}))
      ->capture_default_str();
  app.add_option("--text", options.textFile, "a file with words, which rank by rank read on")
      ->check(CLI::ExistingFile);
  app.add_option("--experts", options.experts, "of all ranks")
      ->check(CLI::Range(1, 1 << 15))
      ->capture_default_str();
  app.add_option("--top-k", options.choices, "experts of a token")
      ->check(CLI::Range(1, 128))
      ->capture_default_str();
  app.add_option("--tokens", options.tokens, "of each rank")
      ->check(kNotNegative)
      ->capture_default_str();
  app.add_option("--hidden", options.hidden, "elements of a token")
      ->check(kPositive)
      ->capture_default_str();
  app.add_option("-d,--datatype", dataType,
                 "of the rows that go to experts: bfloat16, half, float, fp8_e4m3 or fp8_e5m2. Of "
                 "the latter two bfloat16 returns")
      ->check(CLI::IsMember(kTypes))
      ->capture_default_str();
  app.add_option("--esp", options.esp, "ranks that share an expert")
      ->check(kPositive)
      ->capture_default_str();
  app.add_option(
         "--drawn", options.drawn,
         "instead: so many passes, each with 0 to --tokens tokens of each rank, in float32; "
         "how long they take by the rows that there are, and what memory")
      ->check(CLI::Range(2, 1 << 20));
  app.add_option("--capacity-factor", options.capacityFactor, "of --drawn; none: dropless")
      ->check(CLI::PositiveNumber)
      ->needs("--drawn");
  addTurnOptions(app, options.iterations, options.warmupIterations, options.repetitions);
  app.add_option("--seed", options.seed, "of the routing")->capture_default_str();
  addMemoryOption(app, options.memory);
  addJsonOption(app, options.jsonFile);
  parse(app, argc, argv, parsed, [&] {
    options.dataType = kTypes.at(dataType);
    options.combined = options.isQuantised() ? kTypes.at("bfloat16") : options.dataType;
    if (options.algorithms.empty()) {
      options.algorithms = {"flat", "rank", "node", "auto"};
      if (options.tokens >= 1 && options.tokens <= 128) options.algorithms.push_back("latency");
    }
    for (const std::string& algorithm : options.algorithms)
      if (algorithm.find(':') != std::string::npos && wireOf(algorithm) == 0)
        throw CLI::ValidationError(
            "--algorithms", algorithm + " must end with :fp8_e4m3 or :fp8_e5m2, or with neither");
    if (options.drawn > 0 && options.memory != moecclMemoryHost)
      throw CLI::ValidationError("--drawn", "is of host memory");
    if (options.choices > options.experts)
      throw CLI::ValidationError("--top-k", "a token cannot have " +
                                                std::to_string(options.choices) + " of " +
                                                std::to_string(options.experts) + " experts");
    constexpr std::int64_t kMostChoices = std::numeric_limits<std::int32_t>::max();
    if (options.tokens > kMostChoices / options.choices)
      throw CLI::ValidationError(
          "--tokens", std::to_string(options.tokens) + " is too many: a rank can have " +
                          std::to_string(kMostChoices) + " choices, --tokens times --top-k");
    if (options.isQuantised() && options.hidden % 128 != 0)
      throw CLI::ValidationError("--hidden",
                                 std::to_string(options.hidden) +
                                     " is no multiple of 128, and rows of a float8 have "
                                     "a scale for each 128 elements");
    if ((options.routing == "text") != !options.textFile.empty())
      throw CLI::ValidationError("--text", "goes with --routing text, which needs it");
  });
  return parsed;
}

}  // namespace moeccl::perf
