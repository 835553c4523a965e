// Answers questions for help and mistakes in arguments alike in all tools, and turns exceptions
// into exit codes.
#include "perf/common/tool.h"

#include <moeccl/moeccl.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

namespace moeccl::perf {
namespace {

constexpr int kWrongArguments = 2;

}  // namespace

std::string versionOf(const std::string& tool) {
  return tool + " (moeccl) " + std::to_string(MOECCL_MAJOR) + '.' + std::to_string(MOECCL_MINOR) +
         '.' + std::to_string(MOECCL_PATCH);
}

bool speaksForAll() {
  for (const char* name : {"MOECCL_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"})
    if (const char* rank = std::getenv(name)) return std::atoi(rank) == 0;
  return true;
}

std::optional<int> answered(const char* tool, const std::string& error, const std::string& text) {
  if (!error.empty()) {
    std::fprintf(stderr, "%s: %s\n%s --help lists all options.\n", tool, error.c_str(), tool);
    return kWrongArguments;
  }
  if (text.empty()) return std::nullopt;
  // Help is printed by one rank. Mistakes are printed by every rank: the first to end with one may
  // have its launcher end the others.
  if (speaksForAll()) std::fputs(text.c_str(), stdout);
  return EXIT_SUCCESS;
}

int runAlone(const char* tool, const std::function<void()>& work) {
  try {
    work();
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", tool, error.what());
    return EXIT_FAILURE;
  }
}

}  // namespace moeccl::perf
