// How communicators come into being: over a launcher's all-gather, or out of another communicator.
#include <algorithm>
#include <numeric>
#include <utility>

#include "src/comm/communicator.h"
#include "src/comm/host.h"
#include "src/comm/oob.h"
#include "src/comm/stream.h"
#include "src/exec/tag.h"
#include "src/log.h"

namespace moeccl {
namespace {

// A communicator's own all-gather, in the place of a launcher's.
class CommunicatorOob : public Oob {
 public:
  explicit CommunicatorOob(Communicator& communicator) : communicator_(communicator) {}
  int rank() const override { return communicator_.rank(); }
  int ranks() const override { return communicator_.ranks(); }
  void allgather(const void* send, void* recv, std::size_t bytes) override {
    communicator_.run({{&firstAlgorithm(Collective::allGather)}, send, recv, bytes});
  }

 private:
  Communicator& communicator_;
};

bool usesLoopback(TransportChoice choice, std::span<const HostIdentity> hosts) {
  const bool oneProcess = shareProcess(hosts);
  if (choice == TransportChoice::loopback && !oneProcess)
    throw Error(moecclInvalidUsage,
                "MOECCL_TRANSPORT=loopback needs all ranks to be threads of one process; use ucx "
                "or auto");
  return choice != TransportChoice::ucx && oneProcess;
}

std::unique_ptr<Transport> connect(Oob& oob, bool loopback) {
  std::unique_ptr<Transport> transport;
  Transport::Address address;
  agreeAfter(oob, [&] {
    transport = loopback ? makeLoopbackTransport(oob.rank(), oob.ranks())
                         : makeUcxTransport(oob.rank(), oob.ranks());
    address = transport->address();
  });
  const std::vector<Transport::Address> addresses = exchangeBytes(oob, address);
  agreeAfter(oob, [&] { transport->connect(addresses); });
  return transport;
}

struct SplitRequest {
  std::int32_t color, key;
};

// A number that is free on all ranks of `oob`, reserved on those that `take` part in the new
// communicator; collective. Another thread of a rank may be doing the same for another parent, and
// each may have reserved on some ranks what the other wants: then both let go and try again, from
// places that differ by `parent`, so that they do not meet for ever.
int agreeOnNumber(Oob& oob, Domain& domain, bool take, int parent) {
  constexpr int kNumbers = 1 << kCommBits;
  int from = 0;
  for (int tried = 0; tried < 2 * kNumbers;) {
    int proposal = -1;
    {
      Domain::Lock lock(domain);
      proposal = domain.firstFreeNumber(from);
    }
    int distance = 0;
    for (int free : exchangeValue(oob, proposal)) {
      if (free < 0) distance = 2 * kNumbers;
      distance = std::max(distance, (free - from + kNumbers) % kNumbers);
    }
    if (distance == 2 * kNumbers) break;
    const int number = (from + distance) % kNumbers;
    bool mine = true;
    if (take) {
      Domain::Lock lock(domain);
      mine = domain.reserve(number);
    }
    const std::vector<char> reserved = exchangeValue<char>(oob, mine);
    if (std::ranges::count(reserved, 0) == 0) return number;
    if (take && mine) {
      Domain::Lock lock(domain);
      domain.unreserve(number);
    }
    const int step = distance + 1 + parent % 61;
    from = (from + step) % kNumbers;
    tried += step;
  }
  throw Error(moecclInvalidUsage, "this communicator and its relatives have been split " +
                                      std::to_string(kNumbers) + " times; no more is possible");
}

}  // namespace

std::unique_ptr<Communicator> Communicator::create(Oob& oob, const Settings& settings) {
  const std::vector<std::string> records = exchangeText(oob, comparable(settings, oob.ranks()));
  if (const std::string text = disagreement(records); !text.empty())
    throw Error(moecclInvalidUsage, text);
  const std::vector<HostIdentity> hosts = exchangeValue(oob, hostIdentity(settings.nodeId));
  const bool loopback = usesLoopback(settings.transport, hosts);
  std::unique_ptr<Transport> transport = connect(oob, loopback);
  Topology topology = buildTopology(hosts);
  if (logs(LogLevel::info))
    log(LogLevel::info, {oob.rank(), oob.ranks()},
        "joined over %s: %d ranks on %d nodes, this is local rank %d of node %d (%s: %s)",
        loopback ? "the loopback" : "UCX", oob.ranks(), topology.nodes(),
        topology.localOf(oob.rank()), topology.nodeOf(oob.rank()), hosts[oob.rank()].name,
        describeHardware().summary.c_str());
  return over(std::move(transport), std::move(topology), settings);
}

std::unique_ptr<Communicator> Communicator::over(std::unique_ptr<Transport> transport,
                                                 Topology topology, const Settings& settings) {
  const int rank = transport->rank();
  std::vector<int> transportRanks(static_cast<std::size_t>(transport->ranks()));
  std::iota(transportRanks.begin(), transportRanks.end(), 0);
  std::unique_ptr<Trace> trace;
  if (!settings.trace.empty())
    trace = std::make_unique<Trace>(settings.trace + "." + std::to_string(rank) + ".json", rank);
  auto domain =
      std::make_shared<Domain>(std::move(transport), std::move(trace), settings.progressThread);
  return std::unique_ptr<Communicator>(new Communicator(
      std::move(domain), 0, rank, std::move(topology), std::move(transportRanks), settings));
}

std::unique_ptr<Communicator> Communicator::split(int color, int key, const Settings& settings) {
  CommunicatorOob oob(*this);
  const std::vector<SplitRequest> requests = exchangeValue(oob, SplitRequest{color, key});
  std::vector<int> members;
  for (int rank = 0; rank < ranks(); ++rank)
    if (color != MOECCL_SPLIT_NOCOLOR && requests[rank].color == color) members.push_back(rank);
  std::ranges::stable_sort(members, {}, [&](int rank) { return requests[rank].key; });

  const std::vector<std::string> records =
      exchangeText(oob, comparable(settings, static_cast<int>(members.size())));
  std::vector<std::string> ours;
  std::vector<int> nodes, transportRanks;
  for (int rank : members) {
    ours.push_back(records[rank]);
    nodes.push_back(topology_.nodeOf(rank));
    transportRanks.push_back(transportRanks_[rank]);
  }
  // Only now, and by all, also where this group cannot be: other colors share the number.
  const std::string text = disagreement(ours);
  const bool take = color != MOECCL_SPLIT_NOCOLOR && text.empty();
  const int number = agreeOnNumber(oob, *domain_, take, static_cast<int>(number_));
  if (!text.empty()) throw Error(moecclInvalidUsage, text);
  if (!take) return nullptr;
  const auto mine = static_cast<int>(std::ranges::find(members, rank_) - members.begin());
  return std::unique_ptr<Communicator>(new Communicator(domain_, static_cast<std::uint32_t>(number),
                                                        mine, Topology(nodes),
                                                        std::move(transportRanks), settings));
}

}  // namespace moeccl
