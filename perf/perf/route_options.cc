#include "perf/perf/route_options.h"

#include <CLI/CLI.hpp>
#include <map>

#include "perf/common/number_checks.h"

namespace moeccl::perf {
namespace {

// That sums are made of too.
const std::map<std::string, DataType> kTypes = {{"bfloat16", {"bfloat16", moecclBfloat16, 2}},
                                                {"half", {"half", moecclFloat16, 2}},
                                                {"float", {"float", moecclFloat32, 4}}};

}  // namespace

Parsed<RouteOptions> parseRouteOptions(int argc, const char* const* argv) {
  Parsed<RouteOptions> parsed;
  RouteOptions& options = parsed.options;
  std::string dataType = options.dataType.name;
  CLI::App app(
      "Measures token routing: Set, Dispatch and Combine, for several algorithms in turns. Ranks "
      "come as in moeccl-perf.",
      "moeccl-perf route");
  app.add_option("--algorithms", options.algorithms,
                 "comma-separated: node, rank, flat, auto for the library's choice, or latency for "
                 "its latency mode (default: all of them; latency for up to 128 tokens)")
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
  app.add_option("--topk", options.choices, "experts of a token")
      ->check(CLI::Range(1, 128))
      ->capture_default_str();
  app.add_option("--tokens", options.tokens, "of each rank")
      ->check(kNotNegative)
      ->capture_default_str();
  app.add_option("--hidden", options.hidden, "elements of a token")
      ->check(kPositive)
      ->capture_default_str();
  app.add_option("-d,--datatype", dataType, "bfloat16, half or float")
      ->check(CLI::IsMember({"bfloat16", "half", "float"}))
      ->capture_default_str();
  app.add_option("--esp", options.esp, "ranks that share an expert")
      ->check(kPositive)
      ->capture_default_str();
  app.add_option("-n,--iters", options.iterations, "calls that are timed together")
      ->check(kPositive)
      ->capture_default_str();
  app.add_option("-w,--warmup_iters", options.warmupIterations, "calls before those")
      ->check(kNotNegative)
      ->capture_default_str();
  app.add_option("-r,--repeats", options.repetitions, "turns of each algorithm")
      ->check(kPositive)
      ->capture_default_str();
  app.add_option("--seed", options.seed, "of the routing")->capture_default_str();
  try {
    app.parse(argc, argv);
    options.dataType = kTypes.at(dataType);
    if (options.algorithms.empty()) {
      options.algorithms = {"flat", "rank", "node", "auto"};
      if (options.tokens >= 1 && options.tokens <= 128) options.algorithms.push_back("latency");
    }
    if (options.choices > options.experts)
      throw CLI::ValidationError("--topk", "a token cannot have " +
                                               std::to_string(options.choices) + " of " +
                                               std::to_string(options.experts) + " experts");
    if ((options.routing == "text") != !options.textFile.empty())
      throw CLI::ValidationError("--text", "goes with --routing text, which needs it");
  } catch (const CLI::CallForHelp&) {
    parsed.text = app.help();
  } catch (const CLI::ParseError& error) {
    parsed.error = error.what();
  }
  return parsed;
}

}  // namespace moeccl::perf
