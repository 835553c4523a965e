// How a tool begins and ends: what becomes of its arguments, help, errors and the exit code.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace moeccl::perf {

// Everything that is wrong with the arguments is said in `error`, else it is empty. `text` is what
// to print instead of running, as for --help.
template <typename Options>
struct Parsed {
  Options options;
  std::string error;
  std::string text;
};

// "moeccl-fit (moeccl) 0.3.0"
std::string versionOf(const std::string& tool);

// Whether this process is the one of a run that says what concerns all of them. Known before they
// have found each other.
bool speaksForAll();

// Prints help or the mistake where there is nothing to run, and returns the exit code.
std::optional<int> answered(const char* tool, const std::string& error, const std::string& text);

template <typename Options>
std::optional<int> answered(const char* tool, const Parsed<Options>& parsed) {
  return answered(tool, parsed.error, parsed.text);
}

// The rest of main() of a tool without ranks. Returns the exit code.
int runAlone(const char* tool, const std::function<void()>& work);

}  // namespace moeccl::perf
