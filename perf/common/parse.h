// Arguments of a tool.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "perf/common/tool.h"

namespace moeccl::perf {

// Lets `app` read them, then `check`, which may throw CLI::ParseError; parsed.text and parsed.error
// say what came of it. Every tool has --help and --version.
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

}  // namespace moeccl::perf
