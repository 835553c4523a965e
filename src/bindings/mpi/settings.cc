#include "settings.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace moeccl::mpi {
namespace {

bool lists(std::string_view list, std::string_view name) {
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    if (list.substr(0, comma) == name) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

bool isOff(const char* value) { return value != nullptr && std::strcmp(value, "0") == 0; }

Settings read() {
  Settings read;
  const char* const list = std::getenv("MOECCL_MPI");
  const bool all = list == nullptr || *list == '\0' || std::strcmp(list, "1") == 0;
  for (std::size_t i = 0; i < kNames.size(); ++i) read.serves[i] = all || lists(list, kNames[i]);
  if (const char* const trials = std::getenv("MOECCL_MPI_TRIALS"))
    read.trials = std::clamp(std::atoi(trials), 0, 1000);
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
