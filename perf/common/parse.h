// Arguments of a tool.
#pragma once

#include <CLI/CLI.hpp>

#include "perf/common/tool.h"

namespace moeccl::perf {

// Lets `app` read them, then `check`, which may throw CLI::ParseError; parsed.text and parsed.error
// say what came of it.
template <typename Options, typename Check = void (*)()>
void parse(
    CLI::App& app, int argc, const char* const* argv, Parsed<Options>& parsed,
    const Check& check = [] {}) {
  try {
    app.parse(argc, argv);
    check();
  } catch (const CLI::CallForHelp&) {
    parsed.text = app.help();
  } catch (const CLI::ParseError& error) {
    parsed.error = error.what();
  }
}

}  // namespace moeccl::perf
