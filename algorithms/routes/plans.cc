// Plans dispatch, combine and the return of values for one routing, from what a rank knows of it.
// Rows of dispatch and combine go chunk by chunk, each chunk a step of every lane.
#include "algorithms/routes/plans.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace moeccl::routes {
namespace {

// Messages to one rank that are under way at once: one is packed while the network has another.
constexpr int kWindow = 3;

// Ops that were added one after another.
using Ops = OpRange;

// The last sends to each rank on one lane.
class Window {
 public:
  explicit Window(int ranks) : sent_(static_cast<std::size_t>(ranks)) {}
  // What the next send to `rank` waits for besides `deps`.
  std::vector<Ops> deps(int rank, std::vector<Ops> deps = {}) const {
    const std::vector<int>& sent = sent_[static_cast<std::size_t>(rank)];
    if (sent.size() >= kWindow) deps.push_back({sent[sent.size() - kWindow]});
    return deps;
  }
  void add(int rank, int op) { sent_[static_cast<std::size_t>(rank)].push_back(op); }

 private:
  std::vector<std::vector<int>> sent_;
};

// Items after `rank` first, so that not all begin with the same one.
template <typename Items, typename Rank>
std::vector<const typename Items::value_type*> inTurn(const Items& items, int rank, Rank rankOf) {
  std::vector<const typename Items::value_type*> turn;
  for (const auto& item : items)
    if (rankOf(item) > rank) turn.push_back(&item);
  for (const auto& item : items)
    if (rankOf(item) <= rank) turn.push_back(&item);
  return turn;
}

std::int32_t chunksOf(const Knowledge& known) { return known.home.of(0).rows.list.chunks; }

// Blocks of the scratch, all of one size.
class Scratch {
 public:
  explicit Scratch(PlanBuilder& plan) : plan_(plan) {}
  std::int32_t take(std::int32_t count) {
    const std::int32_t first = next_;
    for (; next_ < first + count; ++next_) plan_.scratch({0, 0});
    return first;
  }

 private:
  PlanBuilder& plan_;
  std::int32_t next_ = 0;
};

class Dispatch {
 public:
  explicit Dispatch(const Knowledge& known) : known_(known), scratch_(plan_) {}

  Plan build() {
    plan_.lanes(3);
    for (const Relay::Source& source : known_.relay.sources)
      firstScratch_.push_back(source.rank == known_.rank ? -1 : scratch_.take(source.rows.rows()));
    const int ranks = known_.topology.ranks();
    Window toRelays(ranks), toOthers(ranks);
    for (int chunk = 0; chunk < chunksOf(known_); ++chunk) {
      toRelay(chunk, toRelays);
      const Ops arrived = atRelay(chunk);
      handOn(chunk, arrived, toOthers);
      receive(chunk);
    }
    return plan_.build();
  }

 private:
  void toRelay(int chunk, Window& window) {
    const int nodes = known_.topology.nodes(), own = known_.topology.nodeOf(known_.rank);
    for (int i = 1; i < nodes; ++i) {
      const int node = (own + i) % nodes;
      const int relay = relayOf(known_.topology, known_.way, known_.rank, node);
      if (relay == known_.rank) continue;
      const Home::Share& share = known_.home.of(node);
      BlockList rows;
      for (std::int32_t row = share.rows.chunkBegins[chunk];
           row < share.rows.chunkBegins[chunk + 1]; ++row)
        rows.append(input(share.tokens[row]));
      if (rows.empty()) continue;
      window.add(relay, plan_.send({0, chunk}, relay, rows, window.deps(relay)));
    }
  }

  Ops atRelay(int chunk) {
    const int first = plan_.opCount();
    for (std::size_t i = 0; i < known_.relay.sources.size(); ++i) {
      const Relay::Source& source = known_.relay.sources[i];
      if (source.rank == known_.rank) continue;
      const std::int32_t begin = source.rows.chunkBegins[chunk],
                         end = source.rows.chunkBegins[chunk + 1];
      if (begin < end)
        plan_.recv({0, chunk}, source.rank, scratch(firstScratch_[i] + begin, end - begin));
    }
    return plan_.since(first);
  }

  // Where a row is at the relay.
  Blocks rowOf(const Relay::Destination::Origin& origin) const {
    const auto source = static_cast<std::size_t>(origin.source);
    if (firstScratch_[source] >= 0) return scratch(firstScratch_[source] + origin.row);
    return input(known_.home.of(known_.relay.sources[source].node)
                     .tokens[static_cast<std::size_t>(origin.row)]);
  }

  void handOn(int chunk, Ops arrived, Window& window) {
    for (const Relay::Destination* to :
         inTurn(known_.relay.destinations, known_.rank, [](const auto& d) { return d.rank; })) {
      const bool own = to->rank == known_.rank;
      BlockList rows, places;
      for (std::int32_t row = to->rows.chunkBegins[chunk]; row < to->rows.chunkBegins[chunk + 1];
           ++row) {
        const Blocks from = rowOf(to->origins[static_cast<std::size_t>(row)]);
        if (!own) {
          rows.append(from);
          continue;
        }
        for (std::int32_t entry = to->rows.rowBegins[row]; entry < to->rows.rowBegins[row + 1];
             ++entry) {
          rows.append(from);
          places.append(output(ownPlaces()[static_cast<std::size_t>(entry)]));
        }
      }
      if (rows.empty()) continue;
      if (own)
        plan_.copy({2, chunk}, rows, places, {arrived});
      else
        window.add(to->rank,
                   plan_.send({1, chunk}, to->rank, rows, window.deps(to->rank, {arrived})));
    }
  }

  const std::vector<std::int32_t>& ownPlaces() const {
    for (const Here::From& from : known_.here.from)
      if (from.rank == known_.rank) return from.places;
    return known_.here.from[0].places;
  }

  // A row arrives in the place of its first expert, and is copied from there.
  void receive(int chunk) {
    for (const Here::From* from :
         inTurn(known_.here.from, known_.rank, [](const auto& f) { return f.rank; })) {
      if (from->rank == known_.rank) continue;
      BlockList arrive, copies, places;
      for (std::int32_t row = from->rows.chunkBegins[chunk];
           row < from->rows.chunkBegins[chunk + 1]; ++row) {
        const std::int32_t begin = from->rows.rowBegins[row];
        arrive.append(output(from->places[begin]));
        for (std::int32_t entry = begin + 1; entry < from->rows.rowBegins[row + 1]; ++entry) {
          copies.append(output(from->places[begin]));
          places.append(output(from->places[entry]));
        }
      }
      if (arrive.empty()) continue;
      const int op = plan_.recv({1, chunk}, from->rank, arrive);
      if (!copies.empty()) plan_.copy({2, chunk}, copies, places, {{op}});
    }
  }

  const Knowledge& known_;
  PlanBuilder plan_;
  Scratch scratch_;
  std::vector<std::int32_t> firstScratch_;  // by source of the relay; -1: the rank's own tokens
};

// Sums, those of equally many terms in one op.
class Sums {
 public:
  void add(std::vector<Blocks> terms, Blocks to) {
    if (terms.size() >= byTerms_.size()) byTerms_.resize(terms.size() + 1);
    Group& group = byTerms_[terms.size()];
    group.terms.push_back(std::move(terms));
    group.to.append(to);
  }
  Ops addTo(PlanBuilder& plan, At at, const std::vector<Ops>& deps) const {
    const int first = plan.opCount();
    for (std::size_t count = 1; count < byTerms_.size(); ++count) {
      if (byTerms_[count].terms.empty()) continue;
      BlockList from;
      for (std::size_t term = 0; term < count; ++term)
        for (const std::vector<Blocks>& terms : byTerms_[count].terms) from.append(terms[term]);
      plan.reduce(at, from, byTerms_[count].to, deps);
    }
    return plan.since(first);
  }

 private:
  struct Group {
    std::vector<std::vector<Blocks>> terms;
    BlockList to;
  };
  std::vector<Group> byTerms_;
};

class Combine {
 public:
  explicit Combine(const Knowledge& known) : known_(known), scratch_(plan_) {}

  CombinePlan build() {
    plan_.lanes(4);
    layOut();
    const int ranks = known_.topology.ranks();
    Window toRelays(ranks), toSources(ranks);
    for (int chunk = 0; chunk < chunksOf(known_); ++chunk) {
      toRelay(chunk, toRelays);
      const Ops arrived = atRelay(chunk);
      const Ops added = add(chunk, arrived);
      giveBack(chunk, added, toSources);
      finish(chunk, added);
    }
    return {plan_.build(), std::move(weights_)};
  }

 private:
  void layOut() {
    for (const Relay::Destination& from : known_.relay.destinations) {
      const bool own = from.rank == known_.rank;
      firstTerm_.push_back(own ? -1 : scratch_.take(from.rows.list.entries()));
      if (!own)
        weights_.insert(weights_.end(), from.rows.list.weights.begin(),
                        from.rows.list.weights.end());
    }
    for (const Here::From& from : known_.here.from)
      if (from.rank == known_.rank) ownPlaces_ = &from.places;
    for (const Relay::Source& source : known_.relay.sources)
      firstSum_.push_back(scratch_.take(source.rows.rows()));
    for (int node = 0; node < known_.topology.nodes(); ++node) {
      const bool there = relayOf(known_.topology, known_.way, known_.rank, node) != known_.rank;
      firstBack_.push_back(there ? scratch_.take(known_.home.of(node).rows.rows()) : -1);
    }
  }

  void toRelay(int chunk, Window& window) {
    for (const Here::From* to :
         inTurn(known_.here.from, known_.rank, [](const auto& f) { return f.rank; })) {
      if (to->rank == known_.rank) continue;
      BlockList rows;
      const std::int32_t end = to->rows.rowBegins[to->rows.chunkBegins[chunk + 1]];
      for (std::int32_t entry = to->rows.rowBegins[to->rows.chunkBegins[chunk]]; entry < end;
           ++entry)
        rows.append(input(to->places[entry]));
      if (!rows.empty())
        window.add(to->rank, plan_.send({0, chunk}, to->rank, rows, window.deps(to->rank)));
    }
  }

  Ops atRelay(int chunk) {
    const int first = plan_.opCount();
    for (std::size_t i = 0; i < known_.relay.destinations.size(); ++i) {
      const Relay::Destination& from = known_.relay.destinations[i];
      if (from.rank == known_.rank) continue;
      const std::int32_t begin = from.rows.rowBegins[from.rows.chunkBegins[chunk]],
                         end = from.rows.rowBegins[from.rows.chunkBegins[chunk + 1]];
      if (begin < end)
        plan_.recv({0, chunk}, from.rank, scratch(firstTerm_[i] + begin, end - begin));
    }
    return plan_.since(first);
  }

  Blocks blockOf(const Relay::Source::Term& term) const {
    const std::int32_t first = firstTerm_[static_cast<std::size_t>(term.destination)];
    if (first >= 0) return scratch(first + term.entry);
    return input((*ownPlaces_)[static_cast<std::size_t>(term.entry)]);
  }

  // Adds up what one node's experts have for each row of the chunk.
  Ops add(int chunk, Ops arrived) {
    Sums sums;
    for (std::size_t i = 0; i < known_.relay.sources.size(); ++i) {
      const Relay::Source& source = known_.relay.sources[i];
      for (std::int32_t row = source.rows.chunkBegins[chunk];
           row < source.rows.chunkBegins[chunk + 1]; ++row) {
        std::vector<Blocks> terms;
        for (std::int32_t t = source.termBegins[row]; t < source.termBegins[row + 1]; ++t)
          terms.push_back(blockOf(source.terms[t]));
        Blocks to = scratch(firstSum_[i] + row);
        if (source.rank == known_.rank) {
          const std::int32_t token = known_.home.of(source.node).tokens[row];
          if (known_.home.nodesOf(token) == 1) to = output(token);
        }
        sums.add(std::move(terms), to);
      }
    }
    return sums.addTo(plan_, {1, chunk}, {arrived});
  }

  void giveBack(int chunk, Ops added, Window& window) {
    for (std::size_t i = 0; i < known_.relay.sources.size(); ++i) {
      const Relay::Source& source = known_.relay.sources[i];
      const std::int32_t begin = source.rows.chunkBegins[chunk],
                         end = source.rows.chunkBegins[chunk + 1];
      if (source.rank == known_.rank || begin == end) continue;
      window.add(source.rank,
                 plan_.send({2, chunk}, source.rank, scratch(firstSum_[i] + begin, end - begin),
                            window.deps(source.rank, {added})));
    }
  }

  void finish(int chunk, Ops added) {
    const int first = plan_.opCount(), nodes = known_.topology.nodes();
    const int own = known_.topology.nodeOf(known_.rank);
    for (int i = 1; i < nodes; ++i) {
      const int node = (own + i) % nodes;
      if (firstBack_[static_cast<std::size_t>(node)] < 0) continue;
      const Home::Share& share = known_.home.of(node);
      BlockList rows;
      for (std::int32_t row = share.rows.chunkBegins[chunk];
           row < share.rows.chunkBegins[chunk + 1]; ++row)
        rows.append(known_.home.nodesOf(share.tokens[row]) == 1
                        ? output(share.tokens[row])
                        : scratch(firstBack_[static_cast<std::size_t>(node)] + row));
      if (!rows.empty())
        plan_.recv({2, chunk}, relayOf(known_.topology, known_.way, known_.rank, node), rows);
    }
    const Ops back = plan_.since(first);

    const std::int32_t begin = firstToken(chunk), end = firstToken(chunk + 1);
    std::vector<std::vector<Blocks>> terms(static_cast<std::size_t>(end - begin));
    for (int node = 0; node < nodes; ++node) {
      const Home::Share& share = known_.home.of(node);
      const std::int32_t from = sumsOf(node);
      for (std::int32_t row = share.rows.chunkBegins[chunk];
           row < share.rows.chunkBegins[chunk + 1]; ++row)
        terms[static_cast<std::size_t>(share.tokens[row] - begin)].push_back(scratch(from + row));
    }
    Sums sums;
    for (std::int32_t token = begin; token < end; ++token)
      if (auto& its = terms[static_cast<std::size_t>(token - begin)]; its.size() > 1)
        sums.add(std::move(its), output(token));
    sums.addTo(plan_, {3, chunk}, {added, back});
  }

  std::int32_t firstToken(int chunk) const {
    return static_cast<std::int32_t>(std::int64_t{known_.home.tokens()} * chunk / chunksOf(known_));
  }

  // Where the node's sums for the rank's own tokens are.
  std::int32_t sumsOf(int node) const {
    if (firstBack_[static_cast<std::size_t>(node)] >= 0)
      return firstBack_[static_cast<std::size_t>(node)];
    for (std::size_t i = 0; i < known_.relay.sources.size(); ++i)
      if (known_.relay.sources[i].rank == known_.rank && known_.relay.sources[i].node == node)
        return firstSum_[i];
    return 0;
  }

  const Knowledge& known_;
  PlanBuilder plan_;
  Scratch scratch_;
  std::vector<float> weights_;
  // In the scratch, or -1 where there is nothing: what comes from each destination of the relay,
  // the sums for each of its sources, and what comes back from each node.
  std::vector<std::int32_t> firstTerm_, firstSum_, firstBack_;
  const std::vector<std::int32_t>* ownPlaces_ = nullptr;
};

}  // namespace

Plan dispatchPlan(const Knowledge& known) { return Dispatch(known).build(); }

CombinePlan combinePlan(const Knowledge& known) { return Combine(known).build(); }

Plan returnPlan(const Knowledge& known) {
  PlanBuilder plan;
  Scratch scratchBlocks(plan);
  plan.lanes(2);
  const int ranks = known.topology.ranks();
  const auto placesFor = [&](int source) {
    BlockList places;
    for (const std::int32_t place : known.here.ofSource[static_cast<std::size_t>(source)])
      places.append(input(place));
    return places;
  };
  std::vector<std::int32_t> firstBlock(static_cast<std::size_t>(ranks), -1);
  for (int i = 1; i < ranks; ++i) {
    const int source = (known.rank + i) % ranks;
    if (const BlockList places = placesFor(source); !places.empty())
      plan.send({0, 0}, source, places);
  }
  const int firstReceive = plan.opCount();
  for (int i = 1; i < ranks; ++i) {
    const int from = (known.rank + ranks - i) % ranks;
    const auto count = static_cast<std::int32_t>(known.home.choicesFor(from).size());
    if (count == 0) continue;
    firstBlock[static_cast<std::size_t>(from)] = scratchBlocks.take(count);
    plan.recv({0, 0}, from, scratch(firstBlock[static_cast<std::size_t>(from)], count));
  }
  const Ops arrived = plan.since(firstReceive);
  // Ranks of shards in their order: those of one position are on ascending ranks.
  std::vector<std::vector<Blocks>> terms(static_cast<std::size_t>(known.home.tokens()) *
                                         static_cast<std::size_t>(known.home.choices()));
  for (int from = 0; from < ranks; ++from) {
    const std::vector<std::int32_t>& choices = known.home.choicesFor(from);
    for (std::size_t i = 0; i < choices.size(); ++i) {
      const Blocks block =
          from == known.rank
              ? input(known.here.ofSource[static_cast<std::size_t>(from)][i])
              : scratch(firstBlock[static_cast<std::size_t>(from)] + static_cast<std::int32_t>(i));
      terms[static_cast<std::size_t>(choices[i])].push_back(block);
    }
  }
  Sums sums;
  for (std::size_t choice = 0; choice < terms.size(); ++choice)
    if (!terms[choice].empty())
      sums.add(std::move(terms[choice]), output(static_cast<std::int32_t>(choice)));
  sums.addTo(plan, {1, 0}, {arrived});
  return plan.build();
}

}  // namespace moeccl::routes
