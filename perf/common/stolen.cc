// Reads from /proc/stat for how long a hypervisor took processors away, and calls more than 2 % of
// all processors' time a disturbance.
#include "perf/common/stolen.h"

#include <unistd.h>

#include <fstream>
#include <string>

namespace moeccl::perf {
namespace {

constexpr double kDisturbing = 0.02;

double stolenSoFar() {
  std::ifstream stat("/proc/stat");
  return stolenSeconds(stat);
}

}  // namespace

double stolenSeconds(std::istream& stat) {
  // cpu user nice system idle iowait irq softirq steal ..., in ticks
  std::string name;
  long long ticks = 0;
  stat >> name;
  for (int column = 0; column < 8; ++column) stat >> ticks;
  if (!stat || name != "cpu") return 0;
  return static_cast<double>(ticks) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

StolenTime::StolenTime() : begin_(std::chrono::steady_clock::now()), stolen_(stolenSoFar()) {}

bool StolenTime::disturbed() const {
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin_;
  const auto processors = static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN));
  return stolenSoFar() - stolen_ > kDisturbing * processors * passed.count();
}

}  // namespace moeccl::perf
