// The lists of rows that ranks send in a Begin ahead of the rows themselves, by the same relays.
#pragma once

#include <cstdint>
#include <vector>

#include "src/comm/communicator.h"
#include "src/route/route_choice.h"

namespace moeccl {

// All that it is made with must outlive it.
class RelayLists {
 public:
  // entriesFrom: by rank, how many entries of rows it sends to this one as a relay, or where there
  // are no relays, to its experts.
  RelayLists(Communicator& communicator, const RouteShape& shape, const RouteCandidate& how,
             int chunks, std::vector<std::int32_t> entriesFrom);

  // Sends those of the rank's own rows to relays. Returns those for which this rank is the relay,
  // by source; that of its own rows is empty. Collective, as the next.
  std::vector<routes::RowList> toRelays(const routes::Home& home) const;
  // Hands those on. Returns what this rank's experts get, by relay.
  std::vector<routes::RowList> fromRelays(const routes::Relay& relay);

 private:
  void countFromRelays(const routes::Relay& relay);
  RankBytes packed(int to, const routes::RowList& list) const;
  // Room for a list of so many sources; none where it comes from this rank.
  RankBytes roomFrom(int rank, std::size_t sources) const;
  routes::RowList read(const RankBytes& part, std::size_t sources) const;

  Communicator& communicator_;
  const RouteShape& shape_;
  const RouteCandidate& how_;
  const Topology& topology_;
  const int rank_, chunks_;
  std::vector<std::int32_t> entriesFrom_;
};

}  // namespace moeccl
