// Compares what UCX needs with the free memory of /dev/shm, or UCX_POSIX_DIR, and with this
// process's limit of descriptors.
#include "src/exec/ucx_room.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <stdexcept>
#include <system_error>

#include "src/base/text.h"
#include "src/bootstrap/socket.h"

namespace moeccl {
namespace {

// Shared memory of a rank whose worker has just been made (UCX 1.13: 4.1 MiB), and a little that it
// may grow by.
constexpr double kBytesPerRank = 4.5 * (1 << 20);
constexpr double kMiB = 1 << 20;
// UCX's context and worker, our own events, and pieces by which its shared memory grows.
constexpr rlim_t kDescriptors = 24;
// One for each process that is watched.
constexpr rlim_t kDescriptorsPerPeer = 1;

// Where ranks of a node share memory.
struct Folder {
  std::string path = "/dev/shm";
  std::string problem;  // empty: it can be written to
  double free = 0, size = 0;
};

Folder sharedMemory() {
  Folder folder;
  const char* const asked = std::getenv("UCX_POSIX_DIR");
  if (asked != nullptr && *asked != '\0') folder.path = asked;
  struct statvfs status;
  if (statvfs(folder.path.c_str(), &status) != 0 || access(folder.path.c_str(), W_OK | X_OK) != 0) {
    folder.problem = std::strerror(errno);
    return folder;
  }
  // Without a size, a tmpfs takes what there is.
  const bool bounded = status.f_blocks > 0;
  folder.free = bounded
                    ? static_cast<double>(status.f_bavail) * static_cast<double>(status.f_frsize)
                    : std::numeric_limits<double>::infinity();
  folder.size = static_cast<double>(status.f_blocks) * static_cast<double>(status.f_frsize);
  return folder;
}

// How many descriptors are open. If even this cannot be looked at, all that `limit` allows.
rlim_t openDescriptors(rlim_t limit) {
  std::error_code error;
  rlim_t open = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd", error))
    ++open;
  return error ? limit : open;
}

}  // namespace

std::string describeSharedMemory(int ranks) {
  const Folder folder = sharedMemory();
  const std::string need =
      stringf("%d ranks that share memory need %.1f MiB", ranks, kBytesPerRank * ranks / kMiB);
  if (!folder.problem.empty()) return folder.path + ": " + folder.problem + "; " + need;
  return stringf("%s has %.1f of %.1f MiB free, %s", folder.path.c_str(), folder.free / kMiB,
                 folder.size / kMiB, need.c_str());
}

std::string missingSharedMemory(int ranks) {
  const Folder folder = sharedMemory();
  const bool room = folder.problem.empty() && folder.free >= kBytesPerRank * ranks;
  return room ? "" : describeSharedMemory(ranks);
}

void requireDescriptors(int ranks) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t open = openDescriptors(limit.rlim_cur);
  const rlim_t needed = open + kDescriptors + kDescriptorsPerPeer * static_cast<rlim_t>(ranks - 1);
  if (limit.rlim_cur >= needed) return;
  if (limit.rlim_max >= needed && raiseDescriptorLimit()) return;
  throw std::runtime_error(stringf(
      "this process may open %llu files (ulimit -n), %llu of which are open; %d ranks that share "
      "memory need a limit of %llu",
      static_cast<unsigned long long>(limit.rlim_max), static_cast<unsigned long long>(open), ranks,
      static_cast<unsigned long long>(needed)));
}

}  // namespace moeccl
