// Counts cores by the affinity mask and the quotas of control groups, of version 1 and of version
// 2.
#include "src/bootstrap/cores.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

#include "src/base/text.h"
#include "src/bootstrap/digest.h"

namespace moeccl {
namespace {

std::string firstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The path of this process's control group that shares out processors: "cpu" of version 1, or the
// one of version 2.
std::string controlGroup(const std::string& controller) {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string names = ',' + line.substr(first + 1, second - first - 1) + ',';
    if (controller.empty() ? names == ",," : names.find(',' + controller + ',') != names.npos)
      return line.substr(second + 1);
  }
  return {};
}

// How many processors' time a control group may take; 0: no limit.
double quotaAt(const std::string& folder) {
  double quota = 0, period = 0;
  if (std::istringstream two(firstLine(folder + "/cpu.max")); two >> quota >> period && period > 0)
    return quota / period;
  std::istringstream(firstLine(folder + "/cpu.cfs_quota_us")) >> quota;
  std::istringstream(firstLine(folder + "/cpu.cfs_period_us")) >> period;
  return quota > 0 && period > 0 ? quota / period : 0;
}

// The least quota of a group and of those around it; 0: no limit.
double quotaOf(const std::string& mount, std::string group) {
  double least = 0;
  for (;;) {
    const double quota = quotaAt(mount + group);
    if (quota > 0 && (least == 0 || quota < least)) least = quota;
    if (group.empty() || group == "/") return least;
    group.resize(group.rfind('/'));
  }
}

}  // namespace

Cores availableCores() {
  Cores cores;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof mask, &mask) == 0) cores.count = CPU_COUNT(&mask);
  const std::string older = controlGroup("cpu"), newer = controlGroup("");
  for (const double quota : {quotaOf("/sys/fs/cgroup", newer), quotaOf("/sys/fs/cgroup/cpu", older),
                             quotaOf("/sys/fs/cgroup/unified", newer)})
    if (quota > 0) cores.count = std::min(cores.count, std::max(1, static_cast<int>(quota + 0.5)));
  const std::string kernel = firstLine("/proc/sys/kernel/random/boot_id");
  const std::string groups = kernel + " cpu " + older + " all " + newer;
  cores.which = shortDigest(groups + " cores " +
                            std::string(reinterpret_cast<const char*>(&mask), sizeof mask));
  // "/autogroup-25 nice 0": one for each session.
  const bool bySession = firstLine("/proc/sys/kernel/sched_autogroup_enabled") == "1";
  cores.scheduling = shortDigest(groups + (bySession ? firstLine("/proc/self/autogroup") : ""));
  return cores;
}

int ranksThatShare(std::span<const Cores> byRank, int rank) {
  return static_cast<int>(
      std::ranges::count(byRank, byRank[static_cast<std::size_t>(rank)].which, &Cores::which));
}

bool crowdedAcrossGroups(std::span<const Cores> byRank, int rank) {
  const Cores& mine = byRank[static_cast<std::size_t>(rank)];
  return ranksThatShare(byRank, rank) > mine.count &&
         std::ranges::any_of(byRank, [&](const Cores& other) {
           return other.which == mine.which && other.scheduling != mine.scheduling;
         });
}

}  // namespace moeccl
