#include "src/bootstrap/socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "src/error.h"
#include "src/text.h"

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

// An IPv4 peer of an IPv6 socket counts as IPv4.
IpAddress addressOf(const sockaddr* raw, std::uint16_t* port = nullptr) {
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

// A listening socket of one family; IPv6 ones take IPv4 connections too. errno on failure.
Socket tryListen(int family, std::uint16_t* port) {
  Socket socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return {};
  const int off = 0;
  if (family == AF_INET6 &&
      setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) != 0)
    return {};
  IpAddress any;
  any.family = family;
  Endpoint endpoint = makeEndpoint(any, 0);
  if (bind(socket.get(), endpoint.raw(), endpoint.size) != 0) return {};
  if (listen(socket.get(), SOMAXCONN) != 0) return {};
  if (getsockname(socket.get(), endpoint.raw(), &endpoint.size) != 0) return {};
  addressOf(endpoint.raw(), port);
  return socket;
}

}  // namespace

std::string endpointText(const IpAddress& address, std::uint16_t port) {
  char text[INET6_ADDRSTRLEN] = "?";
  inet_ntop(address.family, address.bytes.data(), text, sizeof text);
  return stringf(address.family == AF_INET ? "%s:%u" : "[%s]:%u", text, port);
}

std::string peerText(const Socket& socket) {
  Endpoint endpoint;
  if (getpeername(socket.get(), endpoint.raw(), &endpoint.size) != 0) return "?";
  std::uint16_t port = 0;
  const IpAddress address = addressOf(endpoint.raw(), &port);
  return endpointText(address, port);
}

std::vector<IpAddress> hostAddresses() {
  ifaddrs* raw = nullptr;
  if (getifaddrs(&raw) != 0)
    throw Error(moecclSystemError, stringf("getifaddrs: %s", std::strerror(errno)));
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> list(raw, freeifaddrs);

  std::vector<std::pair<int, IpAddress>> ranked;
  for (const ifaddrs* entry = raw; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const IpAddress address = addressOf(entry->ifa_addr);
    const bool linkLocal =
        family == AF_INET6 && address.bytes[0] == 0xfe && (address.bytes[1] & 0xc0) == 0x80;
    if (linkLocal) continue;
    int distance = (entry->ifa_flags & IFF_RUNNING) != 0 ? 0 : 2;
    if ((entry->ifa_flags & IFF_LOOPBACK) != 0) distance = 4;
    ranked.emplace_back(distance + (family == AF_INET6 ? 1 : 0), address);
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<IpAddress> addresses;
  for (const auto& [distance, address] : ranked) addresses.push_back(address);
  return addresses;
}

Socket listenAnywhere(std::uint16_t* port) {
  for (int family : {AF_INET6, AF_INET})
    if (Socket socket = tryListen(family, port)) return socket;
  throw Error(moecclSystemError, stringf("cannot listen on a TCP port: %s", std::strerror(errno)));
}

int startConnect(const IpAddress& address, std::uint16_t port, Socket* socket) {
  *socket = Socket(::socket(address.family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!*socket) return errno;
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

}  // namespace moeccl
