// Compares the names of the environment with a list of known ones, by the characters that differ.
#include "src/base/environment.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <string_view>

#include "src/base/log.h"
#include "src/base/text.h"

namespace moeccl {
namespace {

// All that the library, its bindings and its tools read: the names in include/ENVIRONMENT.md.
constexpr std::string_view kVariables[] = {"MOECCL_ALGO",
                                           "MOECCL_DEBUG",
                                           "MOECCL_FAILURE_DETECTION",
                                           "MOECCL_ID_FILE",
                                           "MOECCL_MPI",
                                           "MOECCL_MPI_FLOAT_SUMS",
                                           "MOECCL_MPI_REPORT",
                                           "MOECCL_MPI_TRIALS",
                                           "MOECCL_NODE_ID",
                                           "MOECCL_NRANKS",
                                           "MOECCL_PROBE",
                                           "MOECCL_PROFILE",
                                           "MOECCL_RANK",
                                           "MOECCL_REGISTER",
                                           "MOECCL_SCHEDULE",
                                           "MOECCL_SECRET",
                                           "MOECCL_SOCKET_IFNAME",
                                           "MOECCL_SOCKETS_PER_PEER",
                                           "MOECCL_TIMEOUT",
                                           "MOECCL_TRACE",
                                           "MOECCL_TRANSPORT",
                                           "MOECCL_TRUSTED_NETWORK",
                                           "MOECCL_UNEXPECTED_BYTES"};

// Variables that others read or set: moeccl-lab, the build of the PyTorch package, tests.
constexpr std::string_view kOthers[] = {"MOECCL_INCLUDE", "MOECCL_LOCAL_NRANKS",
                                        "MOECCL_LOCAL_RANK", "MOECCL_NODE", "MOECCL_ROOT"};
constexpr std::string_view kOfTests = "TEST_";

constexpr std::string_view kPrefix = "MOECCL_";

// Characters to insert, to remove or to change (Levenshtein's distance).
std::size_t distance(std::string_view one, std::string_view other) {
  std::vector<std::size_t> row(other.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < one.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < other.size(); ++j) {
      const std::size_t changed = diagonal + (one[i] == other[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

const Environment& processEnvironment() {
  static const Environment kProcess = [](const char* name) { return std::getenv(name); };
  return kProcess;
}

const char* valueOf(const Environment& environment, const char* name) {
  const char* value = environment(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

std::vector<std::string> unknownVariables(const char* const* environment) {
  std::vector<std::string> found;
  for (; *environment != nullptr; ++environment) {
    const std::string_view name =
        std::string_view(*environment).substr(0, std::string_view(*environment).find('='));
    if (!name.starts_with(kPrefix) || name.substr(kPrefix.size()).starts_with(kOfTests) ||
        std::ranges::count(kVariables, name) != 0 || std::ranges::count(kOthers, name) != 0)
      continue;
    const std::string_view nearest = *std::ranges::min_element(
        kVariables, {}, [&](std::string_view known) { return distance(name, known); });
    std::string text = std::string(name) + " is set, but nothing reads it";
    // A third of the name may be wrong.
    if (3 * distance(name, nearest) <= name.size() - kPrefix.size())
      text += "; is it " + std::string(nearest) + " that is meant?";
    found.push_back(text);
  }
  return found;
}

void warnOfUnknownVariables() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (const std::string& text : unknownVariables(environ)) warn(text);
  });
}

}  // namespace moeccl
