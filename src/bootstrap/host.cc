// Makes identities as hashes of what the kernel tells: its boot id, namespaces, /dev/shm, and the
// start time of the process.
#include "src/bootstrap/host.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <fstream>
#include <unordered_map>

#include "src/base/text.h"
#include "src/bootstrap/digest.h"

namespace moeccl {
namespace {

std::string hostName() {
  char name[HOST_NAME_MAX + 1] = "?";
  gethostname(name, sizeof name - 1);
  return name;
}

// Device and inode name a file, and so a mount or a namespace, within one running kernel.
std::string fileIdentity(const char* path) {
  struct stat status;
  if (stat(path, &status) != 0) return "none";
  return stringf("%ju:%ju", static_cast<std::uintmax_t>(status.st_dev),
                 static_cast<std::uintmax_t>(status.st_ino));
}

// One running kernel. The host's name tells no more than that (containers that share memory often
// have different ones, and hosts of one image the same), so it serves only where there is no boot
// id.
std::string kernelIdentity() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  if (std::getline(file, id) && !id.empty()) return "boot " + id;
  return "host " + hostName();
}

// Ranks that can share memory: on one kernel, with one /dev/shm (POSIX shared memory, which a mount
// namespace can replace) and one IPC namespace (System V's, by which UCX decides whether to try).
// Where only one of the two is shared, as between some containers, shared memory may fail, and to
// treat the two as nodes apart is right on any transport. The network and the host's name do not
// count.
std::string nodeIdentity() {
  return kernelIdentity() + " shm " + fileIdentity("/dev/shm") + " ipc " +
         fileIdentity("/proc/self/ns/ipc");
}

// The start time tells a process from an earlier one with its number.
std::string processIdentity() {
  std::ifstream file("/proc/self/stat");
  std::string stat, startTime = "?";
  std::getline(file, stat);
  // The command, field 2, may contain spaces and parentheses; the start time is field 22.
  const std::size_t command = stat.rfind(')');
  if (command != stat.npos) {
    std::size_t at = command + 1;
    for (int field = 3; field < 22 && at != stat.npos; ++field) at = stat.find(' ', at + 1);
    if (at != stat.npos) startTime = stat.substr(at + 1, stat.find(' ', at + 1) - at - 1);
  }
  return kernelIdentity() + " pidns " + fileIdentity("/proc/self/ns/pid") + " pid " +
         std::to_string(getpid()) + " start " + startTime;
}

}  // namespace

HostIdentity hostIdentity(std::string_view nodeId) {
  HostIdentity identity;
  // The prefix keeps an id that looks like a host's identity apart from it.
  identity.node =
      shortDigest(nodeId.empty() ? "found " + nodeIdentity() : "named " + std::string(nodeId));
  identity.process = shortDigest(processIdentity());
  const std::string network = " net " + fileIdentity("/proc/self/ns/net");
  // UCX finds memory by the process that made it, and wakes ranks that sleep by sockets whose names
  // are a network namespace's own.
  identity.memory =
      shortDigest(nodeIdentity() + " pidns " + fileIdentity("/proc/self/ns/pid") + network);
  identity.network = shortDigest(kernelIdentity() + network);
  const std::string name = nodeId.empty() ? hostName() : std::string(nodeId);
  std::strncpy(identity.name, name.c_str(), sizeof identity.name - 1);
  return identity;
}

Topology buildTopology(std::span<const HostIdentity> byRank) {
  std::unordered_map<std::uint64_t, int> numbers;
  std::vector<int> nodeOfRank;
  for (const HostIdentity& identity : byRank)
    nodeOfRank.push_back(
        numbers.try_emplace(identity.node, static_cast<int>(numbers.size())).first->second);
  return Topology(nodeOfRank);
}

bool shareProcess(std::span<const HostIdentity> byRank) {
  return std::all_of(byRank.begin(), byRank.end(), [&](const HostIdentity& identity) {
    return identity.process == byRank[0].process;
  });
}

}  // namespace moeccl
