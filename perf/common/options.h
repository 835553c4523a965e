// Options that several tools have: spelled, read and checked alike.
#pragma once

#include <moeccl/model.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "perf/common/tool.h"

namespace moeccl::perf {

// Lets `app` read the arguments of a tool, then `check`, which may throw CLI::ParseError;
// parsed.text and parsed.error say what came of it. Every tool has --help and --version.
template <typename Options, typename Check = void (*)()>
void parse(
    CLI::App& app, int argc, const char* const* argv, Parsed<Options>& parsed,
    const Check& check = [] {}) {
  const std::string version = versionOf(app.get_name());
  app.set_version_flag("--version", version, "Print the version and exit");
  try {
    app.parse(argc, argv);
    check();
  } catch (const CLI::CallForHelp&) {
    parsed.text = app.help();
  } catch (const CLI::CallForVersion&) {
    parsed.text = version + "\n";
  } catch (const CLI::ParseError& error) {
    parsed.error = error.what();
  }
}

// Checks of numbers whose errors are short: CLI11's own spell out the largest double. `what`
// follows "is no number".
CLI::Validator numberCheck(const char* description, const char* what, bool (*holds)(double));
extern const CLI::Validator kPositive, kNotNegative;
// "1K" becomes 1024.
extern const CLI::Validator kSize;

// --nodes: 2x4 is two nodes of four ranks, 4,4,3 the ranks of each node, 2x4,3 the same. At most
// `mostRanks` ranks together.
CLI::Option* addNodesOption(CLI::App& app, std::vector<int>& ranksPerNode, int mostRanks);

// "2x4x2", ranks of an MP, an EP and an ESP group, or "2x4x2:ep" where EP groups are consecutive
// ranks. Throws CLI::ValidationError, which names `option`.
moecclGridShape_t readGrid(const std::string& option, const std::string& text);
// --grid, one of these. `which` says what it is of, and what is taken without it.
CLI::Option* addGridOption(CLI::App& app, moecclGridShape_t& grid, const std::string& which);

// --layer tokens=4096,embedding=1024,...: sizes of a layer. A capacity factor of 0 makes it
// dropless.
CLI::Option* addLayerOption(CLI::App& app, moecclMoeConfig_t& layer);

// --pass, one of `names`: forward, backward, both. `pass` begins with the default.
CLI::Option* addPassOption(CLI::App& app, moecclPass_t& pass,
                           const std::vector<std::string>& names);
std::string passName(moecclPass_t pass);

// --memory: host, or cuda.
CLI::Option* addMemoryOption(CLI::App& app, moecclMemory_t& memory);

// -n, -w and -r, of what is timed in turns.
void addTurnOptions(CLI::App& app, int& iterations, int& warmupIterations, int& repetitions);

// --json FILE; of several ranks rank 0 writes it.
CLI::Option* addJsonOption(CLI::App& app, std::string& path);

}  // namespace moeccl::perf
