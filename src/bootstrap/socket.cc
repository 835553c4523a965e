// Opens, tunes and breaks connections by the calls of the system. An IPv4 address that is mapped
// into IPv6 is told as IPv4.
#include "src/bootstrap/socket.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "src/base/error.h"
#include "src/base/text.h"

namespace moeccl {
namespace {

struct Endpoint {
  sockaddr_storage storage{};
  socklen_t size = sizeof(sockaddr_storage);

  sockaddr* raw() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

Endpoint makeEndpoint(const IpAddress& address, std::uint16_t port) {
  Endpoint endpoint;
  if (address.family == AF_INET) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(port);
    std::memcpy(&in.sin_addr, address.bytes.data(), sizeof in.sin_addr);
    std::memcpy(&endpoint.storage, &in, sizeof in);
    endpoint.size = sizeof in;
  } else {
    sockaddr_in6 in{};
    in.sin6_family = AF_INET6;
    in.sin6_port = htons(port);
    std::memcpy(&in.sin6_addr, address.bytes.data(), sizeof in.sin6_addr);
    std::memcpy(&endpoint.storage, &in, sizeof in);
    endpoint.size = sizeof in;
  }
  return endpoint;
}

// The unspecified IPv6 address takes IPv4 connections too. errno on failure.
Socket tryListen(const IpAddress& address, std::uint16_t* port) {
  Socket socket(::socket(address.family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return {};
  const int off = 0;
  if (address.family == AF_INET6 &&
      setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) != 0)
    return {};
  // Connections of a run before may still close there.
  const int on = 1;
  if (*port != 0 && setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0)
    return {};
  Endpoint endpoint = makeEndpoint(address, *port);
  if (bind(socket.get(), endpoint.raw(), endpoint.size) != 0) return {};
  if (listen(socket.get(), SOMAXCONN) != 0) return {};
  if (getsockname(socket.get(), endpoint.raw(), &endpoint.size) != 0) return {};
  addressOf(endpoint.raw(), port);
  return socket;
}

std::string portText(std::uint16_t port) {
  return port == 0 ? "a TCP port" : stringf("TCP port %u", port);
}

}  // namespace

std::string addressText(const IpAddress& address) {
  char text[INET6_ADDRSTRLEN] = "?";
  inet_ntop(address.family, address.bytes.data(), text, sizeof text);
  return text;
}

std::string endpointText(const IpAddress& address, std::uint16_t port) {
  return stringf(address.family == AF_INET ? "%s:%u" : "[%s]:%u", addressText(address).c_str(),
                 port);
}

std::string peerText(const Socket& socket) {
  Endpoint endpoint;
  if (getpeername(socket.get(), endpoint.raw(), &endpoint.size) != 0) return "?";
  std::uint16_t port = 0;
  const IpAddress address = addressOf(endpoint.raw(), &port);
  return endpointText(address, port);
}

IpAddress addressOf(const sockaddr* raw, std::uint16_t* port) {
  IpAddress address;
  if (raw->sa_family == AF_INET) {
    sockaddr_in in;
    std::memcpy(&in, raw, sizeof in);
    std::memcpy(address.bytes.data(), &in.sin_addr, sizeof in.sin_addr);
    if (port != nullptr) *port = ntohs(in.sin_port);
    return address;
  }
  sockaddr_in6 in;
  std::memcpy(&in, raw, sizeof in);
  if (port != nullptr) *port = ntohs(in.sin6_port);
  if (IN6_IS_ADDR_V4MAPPED(&in.sin6_addr)) {
    std::memcpy(address.bytes.data(), in.sin6_addr.s6_addr + 12, 4);
  } else {
    address.family = AF_INET6;
    std::memcpy(address.bytes.data(), in.sin6_addr.s6_addr, 16);
  }
  return address;
}

Socket listenAnywhere(std::uint16_t* port) {
  for (int family : {AF_INET6, AF_INET})
    if (Socket socket = tryListen({.family = family}, port)) return socket;
  throw Error(moecclSystemError,
              stringf("cannot listen on %s: %s", portText(*port).c_str(), std::strerror(errno)));
}

Socket listenOn(const IpAddress& address, std::uint16_t* port) {
  if (Socket socket = tryListen(address, port)) return socket;
  throw Error(moecclSystemError, stringf("cannot listen on %s of %s: %s", portText(*port).c_str(),
                                         addressText(address).c_str(), std::strerror(errno)));
}

bool raiseDescriptorLimit() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return false;
  limit.rlim_cur = limit.rlim_max;
  return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

int startConnect(const IpAddress& address, std::uint16_t port, Socket* socket) {
  const auto open = [&] {
    *socket = Socket(::socket(address.family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    return static_cast<bool>(*socket);
  };
  if (!open() && (errno != EMFILE || !raiseDescriptorLimit() || !open())) return errno;
  const Endpoint endpoint = makeEndpoint(address, port);
  if (connect(socket->get(), endpoint.raw(), endpoint.size) == 0) return 0;
  return errno == EINPROGRESS || errno == EINTR ? 0 : errno;
}

int connectResult(const Socket& socket) {
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  if (error != 0) return error;
  // TCP lets a socket connect to itself, where nobody listens and its own port happens to be the
  // one it calls.
  Endpoint mine, theirs;
  if (getsockname(socket.get(), mine.raw(), &mine.size) != 0) return errno;
  if (getpeername(socket.get(), theirs.raw(), &theirs.size) != 0) return errno;
  std::uint16_t myPort = 0, theirPort = 0;
  const bool self = addressOf(mine.raw(), &myPort) == addressOf(theirs.raw(), &theirPort);
  return self && myPort == theirPort ? ECONNREFUSED : 0;
}

bool isOwnError(int error) {
  constexpr int kOwn[] = {EMFILE, ENFILE, ENOBUFS, ENOMEM, EADDRNOTAVAIL};
  return std::ranges::find(kOwn, error) != std::end(kOwn);
}

bool meansHostIsGone(int error) {
  constexpr int kGone[] = {ETIMEDOUT, EHOSTUNREACH, ENETUNREACH, EHOSTDOWN, ENETDOWN};
  return std::ranges::find(kGone, error) != std::end(kGone);
}

void tuneConnection(const Socket& socket) {
  const auto set = [&](int level, int option, int value) {
    setsockopt(socket.get(), level, option, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
}

std::int64_t silentMs(const Socket& socket) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (getsockopt(socket.get(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
  return std::min(info.tcpi_last_data_recv, info.tcpi_last_ack_recv);
}

void breakConnection(const Socket& socket) {
  const sockaddr none{AF_UNSPEC, {}};
  connect(socket.get(), &none, sizeof none);
}

void breakWhenSilent(const Socket& socket, std::int64_t milliseconds) {
  if (milliseconds < 0) return;
  const auto set = [&](int level, int option, int value) {
    setsockopt(socket.get(), level, option, &value, sizeof value);
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT,
      static_cast<int>(std::min<std::int64_t>(milliseconds, std::numeric_limits<int>::max())));
}

}  // namespace moeccl
