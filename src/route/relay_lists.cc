// Sends lists of rows to relays, and from there to the ranks of experts, which learn first how long
// they are.
#include "src/route/relay_lists.h"

#include <cstring>
#include <utility>

namespace moeccl {

using routes::Relay;
using routes::RowList;

RelayLists::RelayLists(Communicator& communicator, const RouteShape& shape,
                       const RouteCandidate& how, int chunks, std::vector<std::int32_t> entriesFrom)
    : communicator_(communicator),
      shape_(shape),
      how_(how),
      topology_(communicator.topology()),
      rank_(communicator.rank()),
      chunks_(chunks),
      entriesFrom_(std::move(entriesFrom)) {}

RankBytes RelayLists::packed(int to, const RowList& list) const {
  std::vector<std::byte> bytes(
      routes::packedBytes(list.chunks, list.sources, list.entries(), shape_.hasWeights()));
  routes::pack(list, shape_.hasWeights(), bytes.data());
  return {to, std::move(bytes)};
}

RankBytes RelayLists::roomFrom(int rank, std::size_t sources) const {
  if (rank == rank_) return {rank, {}};
  return {rank, std::vector<std::byte>(routes::packedBytes(
                    chunks_, static_cast<int>(sources),
                    entriesFrom_[static_cast<std::size_t>(rank)], shape_.hasWeights()))};
}

RowList RelayLists::read(const RankBytes& part, std::size_t sources) const {
  RowList list;
  routes::unpack(part.bytes, chunks_, static_cast<int>(sources),
                 entriesFrom_[static_cast<std::size_t>(part.rank)], shape_.hasWeights(),
                 shape_.experts.count, &list);
  return list;
}

std::vector<RowList> RelayLists::toRelays(const routes::Home& home) const {
  const std::vector<int>& sources =
      how_.paths.relayed[static_cast<std::size_t>(topology_.nodeOf(rank_))];
  std::vector<RowList> lists(sources.size());
  if (!how_.relays) return lists;
  std::vector<RankBytes> sends, receives;
  for (int node = 0; node < topology_.nodes(); ++node)
    if (const int relay = relayOf(topology_, how_.way, rank_, node); relay != rank_)
      sends.push_back(packed(relay, home.of(node).rows.list));
  for (const int source : sources) receives.push_back(roomFrom(source, 1));
  communicator_.exchange(how_.callName("route: rows to relays"), sends, receives);
  for (std::size_t i = 0; i < sources.size(); ++i)
    if (sources[i] != rank_) lists[i] = read(receives[i], 1);
  return lists;
}

// Only a relay knows how many entries come from it.
void RelayLists::countFromRelays(const Relay& relay) {
  std::vector<RankBytes> sends, receives;
  for (const Relay::Destination& to : relay.destinations) {
    const std::int32_t entries = to.rows.list.entries();
    RankBytes told{to.rank, std::vector<std::byte>(sizeof entries)};
    std::memcpy(told.bytes.data(), &entries, sizeof entries);
    sends.push_back(std::move(told));
  }
  for (const auto& [rank, sources] : how_.paths.relays)
    receives.push_back({rank, std::vector<std::byte>(sizeof(std::int32_t))});
  communicator_.exchange(how_.callName("route: counts in nodes"), sends, receives);
  for (const RankBytes& part : receives)
    if (part.rank != rank_)
      std::memcpy(&entriesFrom_[static_cast<std::size_t>(part.rank)], part.bytes.data(),
                  sizeof(std::int32_t));
}

std::vector<RowList> RelayLists::fromRelays(const Relay& relay) {
  if (how_.relays) countFromRelays(relay);
  std::vector<RankBytes> sends, receives;
  for (const Relay::Destination& to : relay.destinations)
    if (to.rank != rank_) sends.push_back(packed(to.rank, to.rows.list));
  for (const auto& [rank, sources] : how_.paths.relays)
    receives.push_back(roomFrom(rank, sources.size()));
  communicator_.exchange(how_.callName("route: rows"), sends, receives);
  std::vector<RowList> lists;
  for (std::size_t i = 0; i < receives.size(); ++i)
    lists.push_back(receives[i].rank == rank_
                        ? relay.to(rank_)->rows.list
                        : read(receives[i], how_.paths.relays[i].second.size()));
  return lists;
}

}  // namespace moeccl
