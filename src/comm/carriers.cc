#include "src/comm/carriers.h"

#include <algorithm>
#include <vector>

#include "src/exec/joint_transport.h"
#include "src/exec/tcp.h"
#include "src/exec/ucx.h"

namespace moeccl {
namespace {

// What news of a dead host takes, after config.failureDetectionMs.
constexpr std::int64_t kDetectionMs = 2000;

enum class Carrier { loopback, ucx, sharedMemory, rdma, tcp, joint };

bool allHave(std::span<const HostIdentity> hosts, std::uint64_t HostIdentity::*what) {
  return std::ranges::all_of(
      hosts, [&](const HostIdentity& host) { return host.*what == hosts[0].*what; });
}

// Collective.
Carrier choose(Oob& oob, TransportChoice choice, std::span<const HostIdentity> hosts) {
  const bool oneProcess = shareProcess(hosts);
  if (choice == TransportChoice::loopback && !oneProcess)
    throw Error(
        moecclInvalidUsage,
        "MOECCL_TRANSPORT=loopback needs all ranks to be threads of one process; use tcp, ucx "
        "or auto");
  if (choice == TransportChoice::tcp) return Carrier::tcp;
  if (choice == TransportChoice::ucx) return Carrier::ucx;
  if (oneProcess) return Carrier::loopback;
  if (!hasUcx()) return Carrier::tcp;
  if (allHave(hosts, &HostIdentity::memory)) return Carrier::sharedMemory;
  const std::vector<char> rdma = exchangeValue<char>(oob, ucxFindsRdma());
  return std::ranges::count(rdma, 0) == 0 ? Carrier::rdma : Carrier::joint;
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

std::unique_ptr<Transport> make(Carrier carrier, int rank, std::span<const HostIdentity> hosts,
                                const TcpOptions& tcp) {
  const int ranks = static_cast<int>(hosts.size());
  switch (carrier) {
    case Carrier::loopback:
      return makeLoopbackTransport(rank, ranks);
    case Carrier::ucx:
      return makeUcxTransport(rank, ranks);
    case Carrier::sharedMemory:
      return makeUcxTransport(rank, ranks, {.reach = UcxReach::sharedMemory});
    case Carrier::rdma:
      return makeUcxTransport(rank, ranks, {.reach = UcxReach::noTcp});
    case Carrier::tcp:
      return makeTcpTransport(rank, ranks, tcp);
    case Carrier::joint:
      break;
  }
  std::vector<int> members;
  for (int other = 0; other < ranks; ++other)
    if (hosts[static_cast<std::size_t>(other)].memory ==
        hosts[static_cast<std::size_t>(rank)].memory)
      members.push_back(other);
  return makeJointTransport(rank, ranks, members, tcp);
}

}  // namespace

std::unique_ptr<Transport> connectTransport(Oob& oob, const Settings& settings,
                                            std::span<const HostIdentity> hosts,
                                            const Secret& secret) {
  const Carrier carrier = choose(oob, settings.transport, hosts);
  std::unique_ptr<Transport> transport;
  Transport::Address address;
  agreeAfter(oob, [&] {
    transport = make(carrier, oob.rank(), hosts, tcpOptions(settings, hosts, secret));
    address = transport->address();
  });
  const std::vector<Transport::Address> addresses = exchangeBytes(oob, address);
  agreeAfter(oob, [&] { transport->connect(addresses); });
  return transport;
}

}  // namespace moeccl
