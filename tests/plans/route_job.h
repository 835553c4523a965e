// A routing that all ranks know, and what plans of it must do, found in the plainest way.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "algorithms/routes/plans.h"
#include "src/verify/verify.h"

namespace moeccl::testing {

// What all ranks chose, and how their tokens are cut.
struct Routing {
  Topology topology;
  routes::Experts experts;
  int choices = 1, chunks = 1;
  std::vector<std::vector<std::int32_t>> chosen;  // by rank: [tokens][choices]
  bool weighted = false;

  int tokens(int rank) const {
    return static_cast<int>(chosen[static_cast<size_t>(rank)].size()) / choices;
  }
};

// A weight that tells the choice.
inline float weightOf(int rank, int choice) { return static_cast<float>(rank * 10000 + choice); }

// The knowledge of all ranks, whose lists go through their packed form, as they do between ranks.
struct Job {
  Job(const Routing& r, const routes::Way& how) : routing(r), way(how) {
    const int ranks = r.topology.ranks();
    for (int rank = 0; rank < ranks; ++rank) {
      const auto& chosen = r.chosen[static_cast<size_t>(rank)];
      std::vector<float> weights;
      for (size_t i = 0; i < chosen.size(); ++i)
        weights.push_back(weightOf(rank, static_cast<int>(i)));
      paths.push_back(pathsOf(r.topology, way, rank));
      homes.push_back(std::make_unique<routes::Home>(r.topology, r.experts, chosen.data(),
                                                     r.weighted ? weights.data() : nullptr,
                                                     r.tokens(rank), r.choices));
      homes.back()->cut(r.chunks);
    }
    for (int rank = 0; rank < ranks; ++rank) {
      const int node = r.topology.nodeOf(rank);
      std::vector<routes::RowList> lists;
      for (int source : paths[rank].relayed[static_cast<size_t>(node)])
        lists.push_back(source == rank ? routes::RowList{}
                                       : sent(homes[source]->of(node).rows.list));
      relays.push_back(std::make_unique<routes::Relay>(r.topology, r.experts, way, paths[rank],
                                                       rank, *homes[rank], std::move(lists)));
    }
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<routes::RowList> lists;
      for (const auto& [relay, sources] : paths[rank].relays)
        lists.push_back(sent(relays[relay]->to(rank)->rows.list));
      heres.push_back(
          std::make_unique<routes::Here>(r.experts, paths[rank], rank, ranks, std::move(lists)));
    }
  }

  routes::RowList sent(const routes::RowList& list) const {
    std::vector<std::byte> bytes(
        routes::packedBytes(list.chunks, list.sources, list.entries(), routing.weighted));
    routes::pack(list, routing.weighted, bytes.data());
    routes::RowList read;
    routes::unpack(bytes, list.chunks, list.sources, list.entries(), routing.weighted,
                   routing.experts.count, &read);
    return read;
  }

  routes::Knowledge known(int rank) const {
    return {routing.topology, way, rank, *homes[rank], *relays[rank], *heres[rank]};
  }

  template <typename Make>
  std::vector<Plan> plans(Make make) const {
    std::vector<Plan> all;
    for (int rank = 0; rank < routing.topology.ranks(); ++rank) all.push_back(make(known(rank)));
    return all;
  }

  const Routing& routing;
  const routes::Way way;
  std::vector<routes::Paths> paths;
  std::vector<std::unique_ptr<routes::Home>> homes;
  std::vector<std::unique_ptr<routes::Relay>> relays;
  std::vector<std::unique_ptr<routes::Here>> heres;
};

// Where each choice of each token must go, found in the plainest way: payloads (rank, token) by
// place, and the other way round.
struct Truth {
  explicit Truth(const Routing& r) {
    const int ranks = r.topology.ranks();
    tokens.resize(static_cast<size_t>(ranks));
    choices = places = tokens;
    for (int rank = 0; rank < ranks; ++rank)
      places[rank].resize(r.chosen[static_cast<size_t>(rank)].size());
    choices.resize(static_cast<size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      const int position = r.experts.grid.positionOf(rank);
      for (int expert = r.experts.begin(position); expert < r.experts.begin(position + 1); ++expert)
        for (int source = 0; source < ranks; ++source)
          for (size_t i = 0; i < r.chosen[static_cast<size_t>(source)].size(); ++i) {
            if (r.chosen[static_cast<size_t>(source)][i] != expert) continue;
            const auto place = static_cast<int>(tokens[rank].size());
            places[source][i].push_back({rank, place});
            tokens[rank].push_back({{source, static_cast<int>(i) / r.choices}});
            choices[rank].push_back({{source, static_cast<int>(i)}});
          }
    }
  }
  using Lists = std::vector<std::vector<std::vector<Payload>>>;
  Lists tokens, choices;  // by rank, by place
  Lists places;           // by rank, by choice: shards in order
};

inline Promise promise(const Routing& r, std::function<int(int)> inputs,
                       std::function<int(int)> outputs,
                       std::function<std::vector<Payload>(int, int)> expected, bool sums) {
  return {.ranks = r.topology.ranks(),
          .inputBlocks = std::move(inputs),
          .outputBlocks = std::move(outputs),
          .expected =
              [expected](int rank, int block, std::vector<Payload>& payloads) {
                for (Payload payload : expected(rank, block)) payloads.push_back(payload);
              },
          .sums = sums,
          .ordered = sums,
          .uniform = true};
}

struct Promises {
  explicit Promises(const Routing& r, const Truth& truth) {
    const auto tokens = [&r](int rank) { return r.tokens(rank); };
    const auto places = [&truth](int rank) { return static_cast<int>(truth.tokens[rank].size()); };
    const auto choices = [&r](int rank) { return r.tokens(rank) * r.choices; };
    dispatch = promise(
        r, tokens, places, [&truth](int rank, int place) { return truth.tokens[rank][place]; },
        false);
    combine = promise(
        r, places, tokens,
        [&r, &truth](int rank, int token) {
          // (node, expert, choice, shard) of each.
          std::vector<std::pair<std::array<int, 4>, Payload>> all;
          for (int i = token * r.choices; i < (token + 1) * r.choices; ++i)
            for (size_t shard = 0; shard < truth.places[rank][i].size(); ++shard) {
              const Payload at = truth.places[rank][i][shard];
              all.push_back(
                  {{r.topology.nodeOf(at.rank), r.chosen[rank][i], i, static_cast<int>(shard)},
                   at});
            }
          std::ranges::sort(all);
          std::vector<Payload> sum;
          for (const auto& term : all) sum.push_back(term.second);
          return sum;
        },
        true);
    combine.group = [&r](Payload payload) { return r.topology.nodeOf(payload.rank); };
    back = promise(
        r, places, choices, [&truth](int rank, int choice) { return truth.places[rank][choice]; },
        true);
  }
  Promise dispatch, combine, back;
};

// What latency mode exchanges: of each rank something for each other one, whoever are the relays.
inline Promise everyPair(int ranks) {
  const auto blocks = [ranks](int) { return ranks; };
  return {.ranks = ranks,
          .inputBlocks = blocks,
          .outputBlocks = blocks,
          .expected =
              [](int rank, int block, std::vector<Payload>& payloads) {
                payloads.push_back({block, rank});
              },
          .sums = false};
}

}  // namespace moeccl::testing
