// Reads the shim's environment variables, once. A value that means nothing turns the shim off, and
// the first rank says so.
#include "settings.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

namespace moeccl::mpi {
namespace {

constexpr int kMostTrials = 1000;

// Whether the launcher's variables call this rank 0. Without them every rank counts as the first.
bool isFirstRank() {
  for (const char* const variable : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"})
    if (const char* const rank = std::getenv(variable)) return std::strcmp(rank, "0") == 0;
  return true;
}

// A variable that means nothing serves nothing: the program goes on with its MPI.
bool wrong(const char* variable, std::string_view value, const std::string& rule) {
  if (isFirstRank())
    std::fprintf(stderr, "moeccl-mpi: %s has \"%.*s\"; %s. Nothing is served\n", variable,
                 static_cast<int>(value.size()), value.data(), rule.c_str());
  return false;
}

// Marks the collectives of a list of names.
bool readNames(std::string_view list, Settings& read) {
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    const std::string_view name = list.substr(0, comma);
    const auto known = std::ranges::find(kNames, name);
    if (known == kNames.end()) {
      std::string names;
      for (const std::string_view each : kNames) names.append(" ").append(each);
      return wrong("MOECCL_MPI", name, "it must be 0, 1, or some of" + names);
    }
    read.serves[static_cast<std::size_t>(known - kNames.begin())] = true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return true;
}

bool isOff(const char* value) { return value != nullptr && std::strcmp(value, "0") == 0; }

Settings read() {
  Settings read;
  const char* const list = std::getenv("MOECCL_MPI");
  bool good = true;
  if (list == nullptr || *list == '\0' || std::strcmp(list, "1") == 0)
    read.serves.fill(true);
  else if (!isOff(list))
    good = readNames(list, read);
  if (const char* const trials = std::getenv("MOECCL_MPI_TRIALS")) {
    const std::string_view text = trials;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), read.trials);
    if (error != std::errc{} || end != text.data() + text.size() || read.trials < 0 ||
        read.trials > kMostTrials)
      good = wrong("MOECCL_MPI_TRIALS", text,
                   "it must be a number from 0 to " + std::to_string(kMostTrials));
  }
  if (!good) read.serves.fill(false);
  const char* const sums = std::getenv("MOECCL_MPI_FLOAT_SUMS");
  read.floatSums = sums != nullptr && !isOff(sums);
  read.report = !isOff(std::getenv("MOECCL_MPI_REPORT"));
  return read;
}

}  // namespace

bool Settings::any() const { return std::ranges::find(serves, true) != serves.end(); }

const Settings& settings() {
  static const Settings once = read();
  return once;
}

}  // namespace moeccl::mpi
