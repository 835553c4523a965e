// Finds the sockets through /proc/self/fd, and gives them a filter that drops empty datagrams.
#include "src/exec/ucx_sockets.h"

#include <linux/filter.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

namespace moeccl {
namespace {

// The size of the name that bind() makes of one without a byte: a zero and five hexadecimal digits.
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

// Calls visit(fd, inode) for each. The link of a descriptor tells what it is of, as
// "socket:[8472]": other threads open and close descriptors meanwhile, and files of theirs are let
// be.
template <typename Visit>
void visitSockets(Visit visit) {
  constexpr std::string_view kSocket = "socket:[";
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    const std::string name = entry.path().filename();
    const std::string of = std::filesystem::read_symlink(entry.path(), ignored);
    if (!of.starts_with(kSocket)) continue;
    int fd = -1;
    ino_t inode = 0;
    std::from_chars(name.data(), name.data() + name.size(), fd);
    std::from_chars(of.data() + kSocket.size(), of.data() + of.size(), inode);
    if (isNamedDatagramSocket(fd)) visit(fd, inode);
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
    if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) != 0 &&
        errno != EBADF && errno != ENOTSOCK)  // closed meanwhile: none of UCX's
      throw std::runtime_error(std::string("a filter on a socket of UCX's: ") +
                               std::strerror(errno));
  });
}

}  // namespace moeccl
