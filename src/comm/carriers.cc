// Ranks tell each other what they can do, choose a transport by that, and connect it.
#include "src/comm/carriers.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "src/base/log.h"
#include "src/exec/joint_transport.h"
#include "src/exec/tcp.h"
#include "src/exec/ucx.h"

namespace moeccl {
namespace {

// How long news of a dead host takes, after config.failureDetectionMs.
constexpr std::int64_t kDetectionMs = 2000;

enum class Carrier { loopback, ucx, sharedMemory, rdma, tcp, joint };

bool allHave(std::span<const HostIdentity> hosts, std::uint64_t HostIdentity::*what) {
  return std::ranges::all_of(
      hosts, [&](const HostIdentity& host) { return host.*what == hosts[0].*what; });
}

// Ranks that can share memory with `rank`, in ascending order, itself included.
std::vector<int> neighboursOf(std::span<const HostIdentity> hosts, int rank) {
  std::vector<int> neighbours;
  for (int other = 0; other < static_cast<int>(hosts.size()); ++other)
    if (hosts[static_cast<std::size_t>(other)].memory ==
        hosts[static_cast<std::size_t>(rank)].memory)
      neighbours.push_back(other);
  return neighbours;
}

// What ranks choose by.
struct Choice {
  Carrier carrier = Carrier::tcp;
  std::vector<int> members = {};  // of this node, that share memory with this rank and it itself
};

// What a rank can do.
struct Offer {
  char memory;  // share it with its node
  char rdma;
};

// Collective.
Choice choose(Oob& oob, TransportChoice choice, std::span<const HostIdentity> hosts) {
  const bool oneProcess = shareProcess(hosts);
  if (choice == TransportChoice::loopback && !oneProcess)
    throw Error(
        moecclInvalidUsage,
        "MOECCL_TRANSPORT=loopback needs all ranks to be threads of one process; use tcp, ucx "
        "or auto");
  if (choice == TransportChoice::tcp) return {Carrier::tcp};
  if (choice == TransportChoice::ucx) return {Carrier::ucx};
  if (oneProcess) return {Carrier::loopback};
  if (!hasUcx()) return {Carrier::tcp};
  const bool oneNode = allHave(hosts, &HostIdentity::memory);
  std::vector<int> members = neighboursOf(hosts, oob.rank());
  const auto count = static_cast<int>(members.size());
  const std::string missing = count > 1 ? missingSharedMemory(count) : "";
  const std::vector<Offer> offers =
      exchangeValue(oob, Offer{missing.empty(), !oneNode && ucxFindsRdma()});
  if (!missing.empty())
    log(LogLevel::warn, {oob.rank(), oob.ranks()},
        "the ranks of this node use TCP, which is slower (MOECCL_TRANSPORT=tcp does so without "
        "this "
        "warning): %s",
        missing.c_str());
  // All ranks of the node do the same, whichever of them it is that cannot share memory.
  const bool shares = std::ranges::all_of(
      members, [&](int member) { return offers[static_cast<std::size_t>(member)].memory != 0; });
  if (!shares) members = {oob.rank()};
  if (!oneNode)
    return {std::ranges::count(offers, 0, &Offer::rdma) == 0 ? Carrier::rdma : Carrier::joint,
            std::move(members)};
  return {shares ? Carrier::sharedMemory : Carrier::tcp};
}

TcpOptions tcpOptions(const Settings& settings, std::span<const HostIdentity> hosts,
                      const Secret& secret) {
  TcpOptions options;
  options.secret = secret;
  options.interfaces = settings.interfaces;
  options.oneHost = allHave(hosts, &HostIdentity::network);
  options.memory = settings.unexpectedBytes;
  if (settings.failureDetectionMs >= 0) options.dialMs = settings.failureDetectionMs + kDetectionMs;
  options.connections = settings.socketsPerPeer;
  return options;
}

std::unique_ptr<Transport> make(const Choice& choice, int rank, int ranks, const TcpOptions& tcp) {
  switch (choice.carrier) {
    case Carrier::loopback:
      return makeLoopbackTransport(rank, ranks);
    case Carrier::ucx:
      return makeUcxTransport(rank, ranks, {.memory = tcp.memory});
    case Carrier::sharedMemory:
      return makeUcxTransport(rank, ranks, {.reach = UcxReach::sharedMemory, .memory = tcp.memory});
    case Carrier::rdma:
      return makeUcxTransport(rank, ranks, {.reach = UcxReach::noTcp, .memory = tcp.memory});
    case Carrier::tcp:
      return makeTcpTransport(rank, ranks, tcp);
    case Carrier::joint:
      break;
  }
  return makeJointTransport(rank, ranks, choice.members, tcp);
}

}  // namespace

std::unique_ptr<Transport> connectTransport(Oob& oob, const Settings& settings,
                                            std::span<const HostIdentity> hosts,
                                            const Secret& secret) {
  const Choice choice = choose(oob, settings.transport, hosts);
  std::unique_ptr<Transport> transport;
  Transport::Address address;
  agreeAfter(oob, [&] {
    transport = make(choice, oob.rank(), oob.ranks(), tcpOptions(settings, hosts, secret));
    address = transport->address();
  });
  const std::vector<Transport::Address> addresses = exchangeBytes(oob, address);
  agreeAfter(oob, [&] { transport->connect(addresses); });
  return transport;
}

}  // namespace moeccl
