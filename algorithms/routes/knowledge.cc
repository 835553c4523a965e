// What each rank knows of a routing.
#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "algorithms/routes/route.h"

namespace moeccl::routes {
namespace {

// The ranks that hold shards of the experts at a position, by node, in the order of shards.
class Holders {
 public:
  Holders(const Topology& topology, const Grid& grid) : nodes_(topology.nodes()) {
    byNode_.resize(static_cast<std::size_t>(grid.ep) * static_cast<std::size_t>(nodes_));
    nodesOf_.resize(static_cast<std::size_t>(grid.ep));
    for (int position = 0; position < grid.ep; ++position)
      for (int shard = 0; shard < grid.esp; ++shard) {
        const int rank = grid.rankOf(position, shard), node = topology.nodeOf(rank);
        std::vector<int>& there = at(position, node);
        if (there.empty()) nodesOf_[position].push_back(node);
        there.push_back(rank);
      }
  }
  const std::vector<int>& nodesOf(int position) const { return nodesOf_[position]; }
  const std::vector<int>& ranks(int position, int node) const {
    return const_cast<Holders*>(this)->at(position, node);
  }

 private:
  std::vector<int>& at(int position, int node) {
    return byNode_[static_cast<std::size_t>(position) * nodes_ + node];
  }

  int nodes_;
  std::vector<std::vector<int>> byNode_;
  std::vector<std::vector<int>> nodesOf_;
};

void addEntry(RowList& list, int expert, bool first, const float* weight) {
  list.experts.push_back(static_cast<std::uint16_t>(expert | (first ? RowList::kFirst : 0)));
  if (weight != nullptr) list.weights.push_back(*weight);
}

}  // namespace

Home::Home(const Topology& topology, const Experts& experts, const std::int32_t* chosen,
           const float* weights, std::int32_t tokens, int choices)
    : tokens_(tokens),
      choices_(choices),
      shares_(static_cast<std::size_t>(topology.nodes())),
      nodes_(static_cast<std::size_t>(tokens), 0),
      choicesFor_(static_cast<std::size_t>(topology.ranks())) {
  const Holders holders(topology, experts.grid);
  std::vector<std::int32_t> kept;                               // choices of a token, by expert
  std::vector<std::int32_t> lastToken(choicesFor_.size(), -1);  // that each rank gets
  for (std::int32_t token = 0; token < tokens; ++token) {
    kept.clear();
    const std::int32_t first = token * choices;
    for (std::int32_t i = first; i < first + choices; ++i) {
      if (chosen[i] < 0) continue;
      auto at = kept.end();
      while (at != kept.begin() && chosen[at[-1]] > chosen[i]) --at;
      kept.insert(at, i);
    }
    for (const std::int32_t choice : kept) {
      const int position = experts.positionOf(chosen[choice]);
      for (const int node : holders.nodesOf(position)) {
        Share& share = shares_[static_cast<std::size_t>(node)];
        const bool begins = share.tokens.empty() || share.tokens.back() != token;
        addEntry(share.rows.list, chosen[choice], begins,
                 weights == nullptr ? nullptr : weights + choice);
        share.choices.push_back(choice);
        if (begins) {
          share.tokens.push_back(token);
          ++nodes_[static_cast<std::size_t>(token)];
        }
        for (const int rank : holders.ranks(position, node)) {
          choicesFor_[static_cast<std::size_t>(rank)].push_back(choice);
          ++share.legs;
          if (std::exchange(lastToken[static_cast<std::size_t>(rank)], token) != token)
            ++share.ranks;
        }
      }
    }
  }
}

void Home::cut(int chunks) {
  for (Share& share : shares_) {
    RowList list = std::move(share.rows.list);
    list.chunks = chunks;
    list.counts.assign(static_cast<std::size_t>(chunks), 0);
    std::size_t row = 0;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const std::int64_t end = std::int64_t{tokens_} * (chunk + 1) / chunks;
      for (; row < share.tokens.size() && share.tokens[row] < end; ++row) ++list.counts[chunk];
    }
    share.rows = IndexedRows(std::move(list));
  }
}

Relay::Relay(const Topology& topology, const Experts& experts, const Way& way, const Paths& paths,
             int rank, const Home& home, std::vector<RowList> lists) {
  const Holders holders(topology, experts.grid);
  std::vector<std::int32_t> destinationOf(static_cast<std::size_t>(topology.ranks()), -1);
  std::vector<std::size_t> firstSource(paths.relayed.size() + 1, 0);
  for (std::size_t node = 0; node < paths.relayed.size(); ++node) {
    for (std::size_t i = 0; i < paths.relayed[node].size(); ++i) {
      const int source = paths.relayed[node][i];
      IndexedRows rows =
          source == rank ? home.of(static_cast<int>(node)).rows : IndexedRows(std::move(lists[i]));
      sources.push_back({source, static_cast<int>(node), std::move(rows), {}, {}});
    }
    firstSource[node + 1] = sources.size();
  }
  const int chunks = sources.empty() ? 1 : sources[0].rows.list.chunks;
  for (int to = 0; to < topology.ranks(); ++to) {
    const int node = topology.nodeOf(to);
    const auto count = static_cast<int>(paths.relayed[static_cast<std::size_t>(node)].size());
    if (count == 0) continue;
    destinationOf[static_cast<std::size_t>(to)] = static_cast<std::int32_t>(destinations.size());
    destinations.push_back({to, node, {}, {}});
    RowList& list = destinations.back().rows.list;
    list.chunks = chunks;
    list.sources = count;
    list.counts.assign(static_cast<std::size_t>(chunks) * static_cast<std::size_t>(count), 0);
  }
  for (Source& source : sources) source.termBegins.push_back(0);

  for (std::size_t node = 0; node < paths.relayed.size(); ++node)
    for (int chunk = 0; chunk < chunks; ++chunk)
      for (std::size_t s = firstSource[node]; s < firstSource[node + 1]; ++s) {
        Source& source = sources[s];
        const RowList& from = source.rows.list;
        for (std::int32_t row = source.rows.chunkBegins[chunk];
             row < source.rows.chunkBegins[chunk + 1]; ++row) {
          for (std::int32_t entry = source.rows.rowBegins[row];
               entry < source.rows.rowBegins[row + 1]; ++entry) {
            const int expert = from.expert(entry);
            for (const int to : holders.ranks(experts.positionOf(expert), static_cast<int>(node))) {
              const std::int32_t index = destinationOf[static_cast<std::size_t>(to)];
              Destination& destination = destinations[static_cast<std::size_t>(index)];
              RowList& list = destination.rows.list;
              const auto& last = destination.origins;
              const bool first = way.rowPerChoice || last.empty() ||
                                 last.back().source != static_cast<std::int32_t>(s) ||
                                 last.back().row != row;
              if (first) {
                destination.origins.push_back({static_cast<std::int32_t>(s), row});
                ++list.counts[static_cast<std::size_t>(chunk) * list.sources +
                              (s - firstSource[node])];
              }
              source.terms.push_back({index, list.entries()});
              addEntry(list, expert, first, from.weights.empty() ? nullptr : &from.weights[entry]);
            }
          }
          source.termBegins.push_back(static_cast<std::int32_t>(source.terms.size()));
        }
      }
  for (Destination& destination : destinations)
    destination.rows = IndexedRows(std::move(destination.rows.list));
}

const Relay::Destination* Relay::to(int rank) const {
  const auto found = std::ranges::lower_bound(destinations, rank, {}, &Destination::rank);
  return found == destinations.end() || found->rank != rank ? nullptr : &*found;
}

Here::Here(const Experts& experts, const Paths& paths, int rank, int ranks,
           std::vector<RowList> lists)
    : ofSource(static_cast<std::size_t>(ranks)) {
  const int position = experts.grid.positionOf(rank), begin = experts.begin(position);
  const auto local = static_cast<std::size_t>(experts.begin(position + 1) - begin);
  const auto sourceCount = static_cast<std::size_t>(ranks);
  bool weighted = false;
  for (std::size_t i = 0; i < lists.size(); ++i) {
    weighted |= !lists[i].weights.empty();
    from.push_back({paths.relays[i].first, IndexedRows(std::move(lists[i])), {}});
  }
  // Calls visit(from, entry, local expert, source) for all entries, the tokens of a source in
  // order.
  const auto each = [&](const auto& visit) {
    for (std::size_t i = 0; i < from.size(); ++i) {
      const IndexedRows& rows = from[i].rows;
      std::int32_t row = 0;
      for (std::size_t cell = 0; cell < rows.list.counts.size(); ++cell) {
        const int source =
            paths.relays[i].second[cell % static_cast<std::size_t>(rows.list.sources)];
        for (std::int32_t n = 0; n < rows.list.counts[cell]; ++n, ++row)
          for (std::int32_t entry = rows.rowBegins[row]; entry < rows.rowBegins[row + 1]; ++entry)
            visit(from[i], entry, static_cast<std::size_t>(rows.list.expert(entry) - begin),
                  static_cast<std::size_t>(source));
      }
    }
  };
  std::vector<std::int32_t> next(local * sourceCount + 1, 0);
  each([&](const From&, std::int32_t, std::size_t expert, std::size_t source) {
    if (expert >= local) throw std::invalid_argument("a row for an expert of another rank");
    ++next[expert * sourceCount + source + 1];
  });
  std::partial_sum(next.begin(), next.end(), next.begin());
  for (std::size_t expert = 0; expert <= local; ++expert)
    expertBegins.push_back(next[expert * sourceCount]);
  if (weighted) weights.resize(static_cast<std::size_t>(rows()));
  each([&](From& it, std::int32_t entry, std::size_t expert, std::size_t source) {
    const std::int32_t place = next[expert * sourceCount + source]++;
    it.places.push_back(place);
    ofSource[source].push_back(place);
    if (weighted) weights[static_cast<std::size_t>(place)] = it.rows.list.weights[entry];
  });
}

}  // namespace moeccl::routes
