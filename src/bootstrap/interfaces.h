// The network interfaces of this host, and which of them a rank listens on.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/bootstrap/socket.h"

namespace moeccl {

// One address of an interface that is up.
struct InterfaceAddress {
  std::string name;  // "eth0"
  IpAddress address;
  bool loopback = false;
  bool running = true;  // it has a link
};

// In the kernel's order. Without link-local IPv6 addresses, which mean nothing on another host.
std::vector<InterfaceAddress> interfaceAddresses();

// Addresses of this host, those most likely to be reached from others first: with a link, then
// without, loopback last.
std::vector<IpAddress> hostAddresses();

// Whether MOECCL_SOCKET_IFNAME takes an interface of that name. `choice` is a list as in NCCL:
//   "eth,ib"      names that begin so
//   "=eth0,eth1"  these names
//   "^docker"     names that do not begin so; "^=eth0": all but these
//   ""            any
bool takesInterface(std::string_view choice, std::string_view name);

// An address of the interface that a rank listens on. nullptr where `choice` takes none. If
// `choice` names interfaces, it is the first of those that it takes. If `choice` is empty or
// excludes names, the loopback comes last, interfaces with a link go before those without, and
// among equals those for containers and virtual machines come later.
const InterfaceAddress* interfaceToListenOn(std::string_view choice,
                                            std::span<const InterfaceAddress> interfaces);

// The addresses that a rank listens on: those of that interface, at most one of each family, IPv4
// first. Throws Error (moecclInvalidArgument) where there is none.
std::vector<IpAddress> addressesToListenOn(std::string_view choice,
                                           std::span<const InterfaceAddress> interfaces);
inline constexpr std::size_t kFamilies = 2;

// The first endpoint of another rank whose family one of this rank's addresses has, or else its
// first one. `theirs`, where that rank listens, is not empty.
IpEndpoint endpointToDial(std::span<const IpEndpoint> theirs, std::span<const IpAddress> mine);

}  // namespace moeccl
