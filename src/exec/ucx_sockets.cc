#include "src/exec/ucx_sockets.h"

#include <linux/filter.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>

namespace moeccl {
namespace {

// What bind() makes of a name without a byte: a zero and five hexadecimal digits.
constexpr socklen_t kAutomaticName = offsetof(sockaddr_un, sun_path) + 6;

bool isNamedDatagramSocket(int fd) {
  int type = 0;
  socklen_t bytes = sizeof type;
  if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) != 0 || type != SOCK_DGRAM) return false;
  sockaddr_un name{};
  bytes = sizeof name;
  return getsockname(fd, reinterpret_cast<sockaddr*>(&name), &bytes) == 0 &&
         name.sun_family == AF_UNIX && bytes == kAutomaticName && name.sun_path[0] == '\0';
}

// Calls visit(fd, inode) for each.
template <typename Visit>
void visitSockets(Visit visit) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    const std::string name = entry.path().filename();
    int fd = -1;
    std::from_chars(name.data(), name.data() + name.size(), fd);
    struct stat status;
    if (isNamedDatagramSocket(fd) && fstat(fd, &status) == 0) visit(fd, status.st_ino);
  }
}

}  // namespace

std::set<ino_t> UcxSockets::named() {
  std::set<ino_t> inodes;
  visitSockets([&](int, ino_t inode) { inodes.insert(inode); });
  return inodes;
}

void UcxSockets::dropEmptyDatagrams() const {
  sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, 0),
      BPF_STMT(BPF_RET | BPF_K, ~0u),
  };
  const sock_fprog filter{std::size(steps), steps};
  visitSockets([&](int fd, ino_t inode) {
    if (before_.contains(inode)) return;
    if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) != 0)
      throw std::runtime_error(std::string("a filter on a socket of UCX's: ") +
                               std::strerror(errno));
  });
}

}  // namespace moeccl
