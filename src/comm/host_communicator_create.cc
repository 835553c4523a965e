// How communicators come into being: over a launcher's all-gather, or out of another communicator.
#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

#include "src/base/hash.h"
#include "src/base/log.h"
#include "src/base/text.h"
#include "src/bootstrap/hardware.h"
#include "src/bootstrap/oob.h"
#include "src/comm/agreement.h"
#include "src/comm/carriers.h"
#include "src/comm/host_communicator.h"
#include "src/comm/introduction.h"
#include "src/comm/shrink.h"
#include "src/exec/tag.h"

namespace moeccl {
namespace {

// NAME.RANK.json, or where this process has had that NAME.RANK.2.json and so on: the trace of a
// communicator that failed is not lost to the one that follows it.
std::string traceFile(const std::string& name, int rank) {
  static std::mutex mutex;
  static std::map<std::string, int> times;
  const std::string begin = stringf("%s.%d", name.c_str(), rank);
  const std::lock_guard lock(mutex);
  const int time = ++times[begin];
  return time == 1 ? begin + ".json" : stringf("%s.%d.json", begin.c_str(), time);
}

// An all-gather among some ranks of a communicator, by messages.
class MemberOob final : public Oob {
 public:
  // `rank`: the caller's among the members.
  MemberOob(HostCommunicator& communicator, const std::vector<int>& members, int rank)
      : communicator_(communicator), members_(members), rank_(rank) {
    // Several threads may make subsets at once, on each rank in another order.
    std::uint64_t hash = members.size();
    for (const int member : members) hash = mixed(hash, static_cast<std::uint64_t>(member));
    tag_ = static_cast<std::uint32_t>(hash);
  }

  int rank() const override { return rank_; }
  int ranks() const override { return static_cast<int>(members_.size()); }
  std::uint32_t tag() const { return tag_; }
  void allgather(const void* send, void* recv, std::size_t bytes) override {
    MessagesCall call;
    call.kind = MessageOwner::agreement;
    auto* const all = static_cast<std::byte*>(recv);
    const auto at = [&](int rank) { return all + static_cast<std::size_t>(rank) * bytes; };
    std::memmove(at(rank_), send, bytes);
    for (int other = 0; other < ranks(); ++other) {
      if (other == rank_) continue;
      const int peer = members_[static_cast<std::size_t>(other)];
      call.messages.push_back({true, peer, tag_, at(rank_), bytes, nullptr});
      call.messages.push_back({false, peer, tag_, at(other), bytes, nullptr});
    }
    communicator_.run({std::move(call), communicator_.settings().timeoutMs});
  }

 private:
  HostCommunicator& communicator_;
  const std::vector<int>& members_;
  const int rank_;
  std::uint32_t tag_ = 0;
};

// A number that is free on all ranks of `oob`, reserved on those that `take` part in the new
// communicator; collective. Another thread of a rank may be doing the same for another parent or
// subset, and each may have reserved on some ranks what the other wants: then both let go and try
// again, from places that differ by `what`, so that they do not meet for ever.
int agreeOnNumber(Oob& oob, Domain& domain, bool take, std::uint32_t what) {
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
    // What has come for that number is of an earlier communicator, in which a peer made calls that
    // this rank did not. All of it has come, since that peer has told since that the number is free
    // there. It goes before anybody can send to the new one.
    if (take && mine) {
      Domain::Lock lock(domain);
      domain.wait(lock, [&] { return domain.drop(static_cast<std::uint32_t>(number)); });
    }
    const std::vector<char> reserved = exchangeValue<char>(oob, mine);
    if (std::ranges::count(reserved, 0) == 0) return number;
    if (take && mine) {
      Domain::Lock lock(domain);
      domain.unreserve(number);
    }
    const int step = distance + 1 + static_cast<int>(what % 61);
    from = (from + step) % kNumbers;
    tried += step;
  }
  throw Error(moecclInvalidUsage,
              std::to_string(kNumbers) +
                  " communicators of this rank and its relatives exist or have failed; no more are "
                  "possible");
}

}  // namespace

std::unique_ptr<Communicator> HostCommunicator::create(Oob& oob, const Settings& settings) {
  requireAgreement(oob, settings);
  Introduction all = introduce(oob, settings);
  const Topology& topology = all.topology;
  std::unique_ptr<Transport> transport = connectTransport(oob, settings, all.hosts, all.secret);
  if (logs(LogLevel::info))
    log(LogLevel::info, {oob.rank(), oob.ranks()},
        "joined over %s: %d ranks on %d nodes, this is local rank %d of node %d (%s: %s)",
        transport->name().c_str(), oob.ranks(), topology.nodes(), topology.localOf(oob.rank()),
        topology.nodeOf(oob.rank()), all.hosts[oob.rank()].name,
        describeHardware().summary.c_str());
  return over(std::move(transport), std::move(all.watch), std::move(all.topology), settings,
              Waiting(all.sharers, all.crowded));
}

std::unique_ptr<Communicator> HostCommunicator::over(std::unique_ptr<Transport> transport,
                                                     std::unique_ptr<Watch> watch,
                                                     Topology topology, const Settings& settings,
                                                     Waiting waiting) {
  const int rank = transport->rank();
  std::vector<int> transportRanks(static_cast<std::size_t>(transport->ranks()));
  std::iota(transportRanks.begin(), transportRanks.end(), 0);
  std::unique_ptr<Trace> trace;
  if (!settings.trace.empty())
    trace = std::make_unique<Trace>(traceFile(settings.trace, rank), rank);
  // What peers wait for goes on in the progress thread where there is one; then it is no hurry.
  const Domain::Idle idle{settings.idle, settings.idleContext,
                          std::chrono::milliseconds(settings.progressThread ? 100 : 0)};
  auto domain = std::make_shared<Domain>(std::move(transport), std::move(watch), std::move(trace),
                                         settings.progressThread, idle, std::move(waiting));
  return std::unique_ptr<Communicator>(new HostCommunicator(
      std::move(domain), 0, rank, std::move(topology), std::move(transportRanks), settings));
}

std::unique_ptr<Communicator> HostCommunicator::split(int color, int key, const Settings& settings,
                                                      const std::optional<Error>& wrong) {
  CommunicatorOob oob(*this);
  const SplitGroup group = agreeOnSplit(oob, topology_, color, key, settings, wrong);
  std::vector<int> transportRanks;
  for (int rank : group.members) transportRanks.push_back(transportRanks_[rank]);
  // All ranks do this, and only now, even if this group cannot be made: other colors share the
  // number.
  const bool take = !group.members.empty() && group.disagreement.empty();
  const int number = agreeOnNumber(oob, *domain_, take, number_);
  if (!group.disagreement.empty()) throw Error(moecclInvalidUsage, group.disagreement);
  if (!take) return nullptr;
  return std::unique_ptr<Communicator>(
      new HostCommunicator(domain_, static_cast<std::uint32_t>(number), group.rank,
                           Topology(group.nodes), std::move(transportRanks), settings));
}

std::unique_ptr<Communicator> HostCommunicator::subset(const std::vector<int>& members,
                                                       const Settings& settings) {
  std::vector<int> nodes, transportRanks;
  for (const int member : members) {
    nodes.push_back(topology_.nodeOf(member));
    transportRanks.push_back(transportRanks_[member]);
  }
  const auto rank = static_cast<int>(std::ranges::find(members, rank_) - members.begin());
  MemberOob oob(*this, members, rank);
  requireAgreementAtOnce(oob, settings);
  const int number = agreeOnNumber(oob, *domain_, true, number_ + oob.tag());
  return std::unique_ptr<Communicator>(
      new HostCommunicator(domain_, static_cast<std::uint32_t>(number), rank, Topology(nodes),
                           std::move(transportRanks), settings));
}

// The new communicator has connections of its own: those of this one may be broken between ranks
// that live.
std::unique_ptr<Communicator> HostCommunicator::shrink(const std::vector<int>& excluded,
                                                       const Settings& settings,
                                                       const std::optional<Error>& wrong) {
  return shrinkTo({domain_->watch(), number_, transportRanks_, rank_, settings.timeoutMs, &shrinks_,
                   ended_, [this] { return domain_->advance(); }},
                  excluded, wrong, [&](Oob& oob) { return create(oob, settings); });
}

}  // namespace moeccl
