// Lists interfaces by getifaddrs(3), and sorts them by how likely other hosts can reach them.
#include "src/bootstrap/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "src/base/error.h"
#include "src/base/text.h"

namespace moeccl {
namespace {

bool isForGuests(std::string_view name) {
  return name.starts_with("docker") || name.starts_with("virbr");
}

// Lower is better; it decides nothing among equals.
int distanceOf(const InterfaceAddress& interface) {
  return (interface.loopback ? 4 : 0) + (interface.running ? 0 : 2) +
         (isForGuests(interface.name) ? 1 : 0);
}

std::string namesOf(std::span<const InterfaceAddress> interfaces) {
  std::string names;
  for (const InterfaceAddress& each : interfaces)
    if (names.find(each.name) == names.npos) names += (names.empty() ? "" : ", ") + each.name;
  return names.empty() ? "none" : names;
}

}  // namespace

std::vector<InterfaceAddress> interfaceAddresses() {
  ifaddrs* raw = nullptr;
  if (getifaddrs(&raw) != 0)
    throw Error(moecclSystemError, stringf("getifaddrs: %s", std::strerror(errno)));
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> list(raw, freeifaddrs);
  std::vector<InterfaceAddress> all;
  for (const ifaddrs* entry = raw; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const IpAddress address = addressOf(entry->ifa_addr);
    const bool linkLocal =
        family == AF_INET6 && address.bytes[0] == 0xfe && (address.bytes[1] & 0xc0) == 0x80;
    if (linkLocal) continue;
    all.push_back({entry->ifa_name, address, (entry->ifa_flags & IFF_LOOPBACK) != 0,
                   (entry->ifa_flags & IFF_RUNNING) != 0});
  }
  return all;
}

std::vector<IpAddress> hostAddresses() {
  std::vector<InterfaceAddress> all = interfaceAddresses();
  std::ranges::stable_sort(all, {}, [](const InterfaceAddress& each) {
    return (each.loopback ? 4 : each.running ? 0 : 2) + (each.address.family == AF_INET6 ? 1 : 0);
  });
  std::vector<IpAddress> addresses;
  for (const InterfaceAddress& each : all) addresses.push_back(each.address);
  return addresses;
}

bool takesInterface(std::string_view choice, std::string_view name) {
  if (choice.empty()) return true;
  const bool excludes = choice.starts_with('^');
  if (excludes) choice.remove_prefix(1);
  const bool exact = choice.starts_with('=');
  if (exact) choice.remove_prefix(1);
  bool listed = false;
  while (!choice.empty()) {
    const std::string_view item = choice.substr(0, choice.find(','));
    choice.remove_prefix(std::min(item.size() + 1, choice.size()));
    if (!item.empty()) listed |= exact ? name == item : name.starts_with(item);
  }
  return listed != excludes;
}

const InterfaceAddress* interfaceToListenOn(std::string_view choice,
                                            std::span<const InterfaceAddress> interfaces) {
  const InterfaceAddress* best = nullptr;
  // A list of names means what it says; otherwise the loopback is for hosts that have nothing else.
  const bool named = !choice.empty() && !choice.starts_with('^');
  for (const InterfaceAddress& each : interfaces)
    if (takesInterface(choice, each.name) &&
        (best == nullptr || (!named && distanceOf(each) < distanceOf(*best))))
      best = &each;
  return best;
}

std::vector<IpAddress> addressesToListenOn(std::string_view choice,
                                           std::span<const InterfaceAddress> interfaces) {
  const InterfaceAddress* const best = interfaceToListenOn(choice, interfaces);
  if (interfaces.empty())
    throw Error(moecclSystemError, "this host has no network interface that is up");
  if (best == nullptr)
    throw Error(
        moecclInvalidArgument,
        stringf("MOECCL_SOCKET_IFNAME is \"%.*s\", which takes no interface of this host; those "
                "that are up and have an address: %s",
                static_cast<int>(choice.size()), choice.data(), namesOf(interfaces).c_str()));
  std::vector<IpAddress> addresses;
  for (int family : {AF_INET, AF_INET6}) {
    const auto found = std::ranges::find_if(interfaces, [&](const InterfaceAddress& each) {
      return each.name == best->name && each.address.family == family;
    });
    if (found != interfaces.end()) addresses.push_back(found->address);
  }
  return addresses;
}

IpEndpoint endpointToDial(std::span<const IpEndpoint> theirs, std::span<const IpAddress> mine) {
  const auto found = std::ranges::find_if(theirs, [&](const IpEndpoint& each) {
    return std::ranges::find(mine, each.address.family, &IpAddress::family) != mine.end();
  });
  return found == theirs.end() ? theirs.front() : *found;
}

}  // namespace moeccl
