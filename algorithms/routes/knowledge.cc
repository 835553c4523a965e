// What each rank knows of a routing.
#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "algorithms/routes/route.h"

namespace moeccl::routes {
namespace {

void addEntry(RowList& list, int expert, bool first, const float* weight) {
  list.experts.push_back(static_cast<std::uint16_t>(expert | (first ? RowList::kFirst : 0)));
  if (weight != nullptr) list.weights.push_back(*weight);
}

}  // namespace

Holders::Holders(const Topology& topology, const Grid& grid) : nodes_(topology.nodes()) {
  byNode_.resize(static_cast<std::size_t>(grid.ep) * static_cast<std::size_t>(nodes_));
  nodesOf_.resize(static_cast<std::size_t>(grid.ep));
  for (int position = 0; position < grid.ep; ++position)
    for (int shard = 0; shard < grid.esp; ++shard) {
      const int rank = grid.rankOf(position, shard), node = topology.nodeOf(rank);
      std::vector<int>& there = byNode_[static_cast<std::size_t>(position) * nodes_ + node];
      if (there.empty()) nodesOf_[position].push_back(node);
      there.push_back(rank);
    }
}

Home::Home(const Topology& topology, const Experts& experts, int choices, std::int32_t room)
    : experts_(experts),
      holders_(topology, experts.grid),
      choices_(choices),
      shares_(static_cast<std::size_t>(topology.nodes())),
      choicesFor_(static_cast<std::size_t>(topology.ranks())),
      lastToken_(choicesFor_.size()) {
  const auto tokens = static_cast<std::size_t>(room),
             entries = tokens * static_cast<std::size_t>(choices);
  for (Share& share : shares_) {
    share.rows.reserve(entries);
    share.tokens.reserve(tokens);
    share.choices.reserve(entries);
  }
  nodes_.reserve(tokens);
  for (std::vector<std::int32_t>& list : choicesFor_) list.reserve(entries);
  kept_.reserve(static_cast<std::size_t>(choices));
}

Home::Home(const Topology& topology, const Experts& experts, const std::int32_t* chosen,
           const float* weights, std::int32_t tokens, int choices)
    : Home(topology, experts, choices, 0) {
  fill(chosen, weights, tokens);
}

void Home::fill(const std::int32_t* chosen, const float* weights, std::int32_t tokens) {
  tokens_ = tokens;
  for (Share& share : shares_) {
    share.rows.list.clear(1, 1);
    share.tokens.clear();
    share.choices.clear();
    share.legs = share.ranks = 0;
  }
  nodes_.assign(static_cast<std::size_t>(tokens), 0);
  for (std::vector<std::int32_t>& list : choicesFor_) list.clear();
  std::ranges::fill(lastToken_, -1);
  for (std::int32_t token = 0; token < tokens; ++token) {
    kept_.clear();
    const std::int32_t first = token * choices_;
    for (std::int32_t i = first; i < first + choices_; ++i) {
      if (chosen[i] < 0) continue;
      auto at = kept_.end();
      while (at != kept_.begin() && chosen[at[-1]] > chosen[i]) --at;
      kept_.insert(at, i);
    }
    for (const std::int32_t choice : kept_) {
      const int position = experts_.positionOf(chosen[choice]);
      for (const int node : holders_.nodesOf(position)) {
        Share& share = shares_[static_cast<std::size_t>(node)];
        const bool begins = share.tokens.empty() || share.tokens.back() != token;
        addEntry(share.rows.list, chosen[choice], begins,
                 weights == nullptr ? nullptr : weights + choice);
        share.choices.push_back(choice);
        if (begins) {
          share.tokens.push_back(token);
          ++nodes_[static_cast<std::size_t>(token)];
        }
        for (const int rank : holders_.ranks(position, node)) {
          choicesFor_[static_cast<std::size_t>(rank)].push_back(choice);
          ++share.legs;
          if (std::exchange(lastToken_[static_cast<std::size_t>(rank)], token) != token)
            ++share.ranks;
        }
      }
    }
  }
}

void Home::cut(int chunks) {
  for (Share& share : shares_) {
    RowList& list = share.rows.list;
    list.chunks = chunks;
    list.counts.assign(static_cast<std::size_t>(chunks), 0);
    std::size_t row = 0;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const std::int64_t end = std::int64_t{tokens_} * (chunk + 1) / chunks;
      for (; row < share.tokens.size() && share.tokens[row] < end; ++row) ++list.counts[chunk];
    }
    share.rows.index();
  }
}

Relay::Relay(const Topology& topology, const Experts& experts, const Way& way, const Paths& paths,
             int rank, std::int32_t room, int choices)
    : experts_(experts),
      holders_(topology, experts.grid),
      rowPerChoice_(way.rowPerChoice),
      rank_(rank),
      nodes_(topology.nodes()),
      destinationOf_(static_cast<std::size_t>(topology.ranks()), -1),
      firstSource_(paths.relayed.size() + 1, 0) {
  const auto tokens = static_cast<std::size_t>(room),
             entries = tokens * static_cast<std::size_t>(choices);
  for (std::size_t node = 0; node < paths.relayed.size(); ++node) {
    for (const int source : paths.relayed[node]) {
      sources.push_back({source, static_cast<int>(node), {}, {}, {}});
      sources.back().rows.reserve(entries);
      sources.back().termBegins.reserve(tokens + 1);
      sources.back().terms.reserve(entries * static_cast<std::size_t>(experts.grid.esp));
    }
    firstSource_[node + 1] = sources.size();
  }
  for (int to = 0; to < topology.ranks(); ++to) {
    const int node = topology.nodeOf(to);
    const std::size_t count = paths.relayed[static_cast<std::size_t>(node)].size();
    if (count == 0) continue;
    destinationOf_[static_cast<std::size_t>(to)] = static_cast<std::int32_t>(destinations.size());
    destinations.push_back({to, node, {}, {}});
    destinations.back().rows.reserve(count * entries);
    destinations.back().origins.reserve(count * entries);
  }
}

Relay::Relay(const Topology& topology, const Experts& experts, const Way& way, const Paths& paths,
             int rank, const Home& home, std::vector<RowList> lists)
    : Relay(topology, experts, way, paths, rank, 0, 0) {
  const auto own = static_cast<std::size_t>(topology.nodeOf(rank));
  for (std::size_t i = 0; i < lists.size(); ++i) {
    Source& source = sources[firstSource_[own] + i];
    if (source.rank != rank) source.rows = IndexedRows(std::move(lists[i]));
  }
  fill(home);
}

void Relay::fill(const Home& home) {
  for (Source& source : sources) {
    if (source.rank == rank_) source.rows = home.of(source.node).rows;
    source.termBegins.assign(1, 0);
    source.terms.clear();
  }
  const int chunks = sources.empty() ? 1 : sources[0].rows.list.chunks;
  for (Destination& destination : destinations) {
    const auto node = static_cast<std::size_t>(destination.node);
    destination.rows.list.clear(chunks,
                                static_cast<int>(firstSource_[node + 1] - firstSource_[node]));
    destination.origins.clear();
  }
  for (int node = 0; node < nodes_; ++node) {
    const std::size_t first = firstSource_[static_cast<std::size_t>(node)],
                      end = firstSource_[static_cast<std::size_t>(node) + 1];
    for (int chunk = 0; chunk < chunks; ++chunk)
      for (std::size_t s = first; s < end; ++s) {
        Source& source = sources[s];
        for (std::int32_t row = source.rows.chunkBegins[chunk];
             row < source.rows.chunkBegins[chunk + 1]; ++row)
          add(source, s, row, static_cast<std::size_t>(chunk) * (end - first) + (s - first));
      }
  }
  for (Destination& destination : destinations) destination.rows.index();
}

bool Relay::canHandOn(const Source& source) const {
  for (std::int32_t entry = 0; entry < source.rows.list.entries(); ++entry)
    if (holders_.ranks(experts_.positionOf(source.rows.list.expert(entry)), source.node).empty())
      return false;
  return true;
}

// Hands one row on; `cell`: of the counts of lists.
void Relay::add(Source& source, std::size_t index, std::int32_t row, std::size_t cell) {
  const RowList& from = source.rows.list;
  const auto self = static_cast<std::int32_t>(index);
  for (std::int32_t entry = source.rows.rowBegins[row]; entry < source.rows.rowBegins[row + 1];
       ++entry) {
    const int expert = from.expert(entry);
    for (const int to : holders_.ranks(experts_.positionOf(expert), source.node)) {
      const std::int32_t at = destinationOf_[static_cast<std::size_t>(to)];
      Destination& destination = destinations[static_cast<std::size_t>(at)];
      RowList& list = destination.rows.list;
      const auto& last = destination.origins;
      const bool first =
          rowPerChoice_ || last.empty() || last.back().source != self || last.back().row != row;
      if (first) {
        destination.origins.push_back({self, row});
        ++list.counts[cell];
      }
      source.terms.push_back({at, list.entries()});
      addEntry(list, expert, first, from.weights.empty() ? nullptr : &from.weights[entry]);
    }
  }
  source.termBegins.push_back(static_cast<std::int32_t>(source.terms.size()));
}

const Relay::Destination* Relay::to(int rank) const {
  const std::int32_t at = destinationOf_[static_cast<std::size_t>(rank)];
  return at < 0 ? nullptr : &destinations[static_cast<std::size_t>(at)];
}

Here::Here(const Experts& experts, const Paths& paths, int rank, int ranks, std::int32_t room,
           int choices)
    : ofSource(static_cast<std::size_t>(ranks)) {
  const int position = experts.grid.positionOf(rank);
  firstExpert_ = experts.begin(position);
  localExperts_ = static_cast<std::size_t>(experts.begin(position + 1) - firstExpert_);
  const std::size_t entries = static_cast<std::size_t>(room) * static_cast<std::size_t>(choices);
  for (const auto& [relay, sources] : paths.relays) {
    from.push_back({relay, {}, {}});
    from.back().rows.reserve(sources.size() * entries);
    from.back().places.reserve(sources.size() * entries);
    sources_.push_back(sources);
  }
  for (std::vector<std::int32_t>& places : ofSource) places.reserve(entries);
  next_.reserve(localExperts_ * ofSource.size() + 1);
  expertBegins.reserve(localExperts_ + 1);
}

Here::Here(const Experts& experts, const Paths& paths, int rank, int ranks,
           std::vector<RowList> lists, std::int64_t alignment)
    : Here(experts, paths, rank, ranks, 0, 0) {
  alignment_ = alignment;
  for (std::size_t i = 0; i < lists.size(); ++i) {
    if (!holds(lists[i])) throw std::invalid_argument("a row for an expert of another rank");
    from[i].rows = IndexedRows(std::move(lists[i]));
  }
  fill();
}

// Calls visit(from, entry, local expert, source) for all entries, the tokens of a source in order.
template <typename Visit>
void Here::each(const Visit& visit) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    const IndexedRows& rows = from[i].rows;
    std::int32_t row = 0;
    for (std::size_t cell = 0; cell < rows.list.counts.size(); ++cell) {
      const int source = sources_[i][cell % static_cast<std::size_t>(rows.list.sources)];
      for (std::int32_t n = 0; n < rows.list.counts[cell]; ++n, ++row)
        for (std::int32_t entry = rows.rowBegins[row]; entry < rows.rowBegins[row + 1]; ++entry)
          visit(from[i], entry, static_cast<std::size_t>(rows.list.expert(entry) - firstExpert_),
                static_cast<std::size_t>(source));
    }
  }
}

std::int64_t Here::rowsOf(std::size_t localExpert, int source) const {
  // Each has been moved to where the next ones begin.
  const std::size_t cell = localExpert * ofSource.size() + static_cast<std::size_t>(source);
  return next_[cell] - (source == 0 ? expertBegins[localExpert] : next_[cell - 1]);
}

void Here::rankCounts(int ranks, std::int64_t* counts) const {
  for (std::size_t expert = 0; expert < localExperts_; ++expert)
    for (int rank = 0; rank < ranks; ++rank) *counts++ = rowsOf(expert, rank);
}

bool Here::holds(const RowList& list) const {
  for (std::int32_t entry = 0; entry < list.entries(); ++entry)
    if (const int expert = list.expert(entry) - firstExpert_;
        expert < 0 || static_cast<std::size_t>(expert) >= localExperts_)
      return false;
  return true;
}

void Here::fill() {
  const std::size_t sourceCount = ofSource.size();
  const bool weighted =
      std::ranges::any_of(from, [](const From& it) { return !it.rows.list.weights.empty(); });
  for (From& it : from) it.places.clear();
  for (std::vector<std::int32_t>& places : ofSource) places.clear();
  next_.assign(localExperts_ * sourceCount + 1, 0);
  each([&](const From&, std::int32_t, std::size_t expert, std::size_t source) {
    ++next_[expert * sourceCount + source + 1];
  });
  std::partial_sum(next_.begin(), next_.end(), next_.begin());
  expertBegins.clear();
  padding.clear();
  std::int64_t behind = 0;  // all places so far, padding included
  for (std::size_t expert = 0; expert < localExperts_; ++expert) {
    expertBegins.push_back(behind);
    const std::size_t first = expert * sourceCount;
    const std::int64_t moved = behind - next_[first];
    behind += next_[first + sourceCount] - next_[first];
    for (std::size_t cell = first; cell < first + sourceCount; ++cell)
      next_[cell] += static_cast<std::int32_t>(moved);
    for (; behind % alignment_ != 0; ++behind) padding.push_back(static_cast<std::int32_t>(behind));
  }
  expertBegins.push_back(behind);
  weights.resize(weighted ? static_cast<std::size_t>(rows()) : 0);
  each([&](From& it, std::int32_t entry, std::size_t expert, std::size_t source) {
    const std::int32_t place = next_[expert * sourceCount + source]++;
    it.places.push_back(place);
    ofSource[source].push_back(place);
    if (weighted) weights[static_cast<std::size_t>(place)] = it.rows.list.weights[entry];
  });
}

}  // namespace moeccl::routes
