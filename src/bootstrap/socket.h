// TCP sockets: owned, non-blocking, closed on exec, IPv4 and IPv6.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "src/base/file_descriptor.h"

namespace moeccl {

// A socket ends for its peers as soon as it is closed here: a child that was forked meanwhile holds
// a copy, but of a connection that is shut down.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&&) noexcept = default;
  Socket& operator=(Socket&& other) noexcept {
    shutDown();
    fd_ = std::move(other.fd_);
    return *this;
  }
  ~Socket() { shutDown(); }

  int get() const { return fd_.get(); }
  explicit operator bool() const { return static_cast<bool>(fd_); }

 private:
  // Leaves errno as it is: whoever gives a socket up may still have to say why.
  void shutDown() {
    const int error = errno;
    if (fd_) ::shutdown(fd_.get(), SHUT_RDWR);
    errno = error;
  }

  FileDescriptor fd_;
};

struct IpAddress {
  int family = AF_INET;                  // or AF_INET6
  std::array<std::uint8_t, 16> bytes{};  // network order; IPv4: the first four

  std::size_t size() const { return family == AF_INET ? 4 : 16; }
  bool operator==(const IpAddress&) const = default;
};

// Where somebody listens.
struct IpEndpoint {
  IpAddress address;
  std::uint16_t port = 0;
};

std::string addressText(const IpAddress& address);
// "10.0.0.1:4242", "[fd00::1]:4242"
std::string endpointText(const IpAddress& address, std::uint16_t port);
std::string peerText(const Socket& socket);
// The address, and in *port the port, of an IPv4 or IPv6 endpoint. An IPv4 peer of an IPv6 socket
// counts as IPv4.
IpAddress addressOf(const sockaddr* raw, std::uint16_t* port = nullptr);

// Listen on *port of all addresses of this host, or of one. If *port is 0, they take any free port
// and store it there. Throw Error (moecclSystemError).
Socket listenAnywhere(std::uint16_t* port);
Socket listenOn(const IpAddress& address, std::uint16_t* port);

// Raises the soft limit of descriptors, usually 1024, to the hard one, as NCCL does for its
// bootstrap. For when they have run out; returns whether there are more now.
bool raiseDescriptorLimit();

// Starts to connect, with more descriptors where they have run out; 0 or the error that already
// ended it. Poll for writing, then connectResult().
int startConnect(const IpAddress& address, std::uint16_t port, Socket* socket);
int connectResult(const Socket& socket);
// Whether such an error is one of this process and its host: nothing of a peer is known by it.
bool isOwnError(int error);
// Whether such an error is one of the way to a peer, or of its host, which do not answer.
bool meansHostIsGone(int error);

// TCP as the set-up needs it: no delays for small messages, and a peer whose machine has vanished
// is noticed within half a minute.
void tuneConnection(const Socket& socket);
// Breaks the connection (ETIMEDOUT) when the peer's host has not answered for that long, also while
// nothing is sent. The kernel of a host answers for processes that compute or are stopped. It does
// not answer for a peer that reads nothing once its buffer is full: so this is for connections with
// few data. Negative: never.
void breakWhenSilent(const Socket& socket, std::int64_t milliseconds);
// Milliseconds since anything has come from the peer's host, also of a connection that has broken.
std::int64_t silentMs(const Socket& socket);
// Ends a connection at once, so that the peer sees it broken and not closed in order.
void breakConnection(const Socket& socket);
// For the set-up, before ranks have been told how long.
inline constexpr std::int64_t kSilenceMs = 3000;

}  // namespace moeccl
