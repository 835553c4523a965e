// Reads what programs use of some processors from /proc/stat, and judges what the ranks do not use
// of it themselves.
#include "perf/fit/busy.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <sstream>

namespace moeccl::perf {
namespace {

constexpr double kDisturbing = 0.1, kNoiseSeconds = 0.05;

// How many of the processors others take.
double taken(const MachineUse& use) {
  if (use.seconds <= 0) return 0;
  const double taken = (use.all.used - use.own + use.all.stolen) / use.seconds;
  return std::clamp(taken, 0.0, static_cast<double>(use.processors));
}

}  // namespace

ProcessorTimes processorTimes(std::istream& stat, const std::vector<bool>& counted) {
  const auto perSecond = static_cast<double>(sysconf(_SC_CLK_TCK));
  ProcessorTimes times;
  for (std::string line; std::getline(stat, line);) {
    // cpu3 user nice system idle iowait irq softirq steal ..., in ticks
    std::size_t cpu = 0;
    long long user = 0, nice = 0, system = 0, other = 0, stolen = 0;
    std::istringstream words(line);
    std::string name;
    words >> name >> user >> nice >> system >> other >> other >> other >> other >> stolen;
    if (!words || std::sscanf(name.c_str(), "cpu%zu", &cpu) != 1) continue;
    if (cpu >= counted.size() || !counted[cpu]) continue;
    times.used += static_cast<double>(user + nice + system) / perSecond;
    times.stolen += static_cast<double>(stolen) / perSecond;
  }
  return times;
}

bool isBusy(const MachineUse& use) {
  if (use.seconds <= 0) return false;
  const double wanted = std::min(use.ranks, use.processors);
  const double missing = wanted - (use.processors - taken(use));
  return missing > kDisturbing * wanted + kNoiseSeconds / use.seconds;
}

std::string textOf(const MachineUse& use) {
  std::array<char, 160> text{};
  const double stolen = use.seconds > 0 ? use.all.stolen / use.seconds : 0;
  const char* const who =
      2 * stolen > taken(use) ? "the host of this virtual machine takes" : "other programs take";
  std::snprintf(text.data(), text.size(), "%s %.2f of the %d processors of rank %d's machine", who,
                taken(use), use.processors, use.firstRank);
  return text.data();
}

}  // namespace moeccl::perf
