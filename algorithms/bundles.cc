// Plans all-to-alls that relay bundles: by way of the nodes, which is gather, cross and scatter in
// three steps, or in Bruck's rounds, one for each digit of a distance.
#include "algorithms/bundles.h"

#include <algorithm>
#include <cstdint>

namespace moeccl {
namespace {

void addWait(std::vector<OpRange>& waits, OpRange range) {
  if (range.count > 0 && (waits.empty() || !(waits.back() == range))) waits.push_back(range);
}

// Who leads for whom.
class Leadership {
 public:
  Leadership(const Topology& topology, int leaders) : topology_(topology), leaders_(leaders) {}

  int count(int node) const {
    const int size = topology_.nodeSize(node);
    return leaders_ > 0 ? std::min(leaders_, size) : size;
  }
  int leaderFor(int node, int destination) const {
    return topology_.ranksOn(node)[topology_.localOf(destination) % count(node)];
  }
  // The ranks of `there` that `leader`, of its own node, carries bundles for, and that
  // `leaderThere` serves.
  std::vector<int> served(int leader, int there, int leaderThere) const {
    std::vector<int> destinations;
    const int leaders = count(topology_.nodeOf(leader)), first = topology_.localOf(leader);
    if (first >= leaders) return destinations;
    const std::span<const int> ranks = topology_.ranksOn(there);
    for (size_t local = static_cast<size_t>(first); local < ranks.size();
         local += static_cast<size_t>(leaders))
      if (leaderFor(there, ranks[local]) == leaderThere) destinations.push_back(ranks[local]);
    return destinations;
  }

 private:
  const Topology& topology_;
  const int leaders_;
};

class ByNodes {
 public:
  ByNodes(PlanBuilder& plan, const Topology& topology, int leaders, int rank,
          const Bundles& bundles, At at)
      : plan_(plan),
        topology_(topology),
        leads_(topology, leaders),
        bundles_(bundles),
        rank_(rank),
        node_(topology.nodeOf(rank)),
        neighbours_(topology.ranksOn(node_)),
        at_(at),
        carried_(static_cast<size_t>(topology.ranks())) {}

  std::vector<OpRange> exchange() {
    gather();
    cross();
    scatter();
    return arrivals_;
  }

 private:
  At step(int number) const { return {at_.lane, at_.step + number}; }

  BlockList held(int source, int destination) { return bundles_.held(plan_, source, destination); }

  // Others' bundles are put behind one's own, for a message of one run, unless there are none, or
  // one's own is in scratch already.
  bool staysWhereItIs(int destination) const {
    const BlockList own = bundles_.leaving(destination);
    return topology_.nodeSize(node_) == 1 ||
           (!own.empty() && own.runs().front().buffer == Buffer::scratch);
  }

  // Step 0. Both ends of a message go through the destinations in the same order.
  void gather() {
    const int size = topology_.nodeSize(node_), local = topology_.localOf(rank_);
    std::vector<BlockList> leaving(static_cast<size_t>(size)), arriving(leaving);  // by local rank
    std::vector<std::vector<OpRange>> waits(static_cast<size_t>(size));            // likewise
    BlockList own, ownPlaces;
    std::vector<OpRange> ownWaits;
    for (int destination : topology_.nodeByNode()) {
      const int leader = leads_.leaderFor(node_, destination);
      if (destination != rank_ && leader != rank_) {
        leaving[topology_.localOf(leader)].append(bundles_.leaving(destination));
        addWait(waits[topology_.localOf(leader)], bundles_.ready(destination));
      }
      if (leader != rank_) continue;
      for (int source : neighbours_) {
        if (source == destination) continue;
        BlockList place;
        const bool stays = source == rank_ && staysWhereItIs(destination);
        if (destination == rank_)
          place = bundles_.arriving(source);
        else if (stays)
          place = bundles_.leaving(destination);
        else
          place = held(source, destination);
        if (destination != rank_) carried_[static_cast<size_t>(destination)].append(place);
        if (source != rank_) {
          arriving[topology_.localOf(source)].append(place);
          continue;
        }
        if (!stays) {
          own.append(bundles_.leaving(destination));
          ownPlaces.append(place);
        }
        addWait(ownWaits, bundles_.ready(destination));
      }
    }
    const int first = plan_.opCount();
    if (!own.empty()) plan_.copy(step(0), own, ownPlaces, ownWaits);
    const int firstRecv = plan_.opCount();
    for (int i = 1; i < size; ++i) {
      const int from = (local - i + size) % size;
      if (!arriving[from].empty()) plan_.recv(step(0), neighbours_[from], arriving[from]);
    }
    arrivals_.push_back(plan_.since(firstRecv));
    ready_.push_back(plan_.since(first));
    ready_.insert(ready_.end(), ownWaits.begin(), ownWaits.end());
    for (int i = 1; i < size; ++i) {
      const int to = (local + i) % size;
      if (!leaving[to].empty()) plan_.send(step(0), neighbours_[to], leaving[to], waits[to]);
    }
  }

  // Step 1. It starts with the next node, so that no node is everybody's first target.
  void cross() {
    const int nodes = topology_.nodes();
    const int first = plan_.opCount();
    for (int i = 1; i < nodes; ++i) {
      const int from = (node_ - i + nodes) % nodes;
      for (int l = 0; l < leads_.count(from); ++l) {
        const int leader = topology_.ranksOn(from)[l];
        BlockList arriving;
        for (int destination : leads_.served(leader, node_, rank_))
          for (int source : topology_.ranksOn(from)) {
            if (destination == rank_) {
              arriving.append(bundles_.arriving(source));
              continue;
            }
            const BlockList place = held(source, destination);
            relayed_.push_back({destination, place});
            arriving.append(place);
          }
        if (!arriving.empty()) plan_.recv(step(1), leader, arriving);
      }
    }
    const OpRange arrived = plan_.since(first);
    for (int i = 1; i < nodes; ++i) {
      const int to = (node_ + i) % nodes;
      for (int l = 0; l < leads_.count(to); ++l) {
        const int leader = topology_.ranksOn(to)[l];
        BlockList leaving;
        for (int destination : leads_.served(rank_, to, leader))
          leaving.append(carried_[static_cast<size_t>(destination)]);
        if (!leaving.empty()) plan_.send(step(1), leader, leaving, ready_);
      }
    }
    arrivals_.push_back(arrived);
    ready_.push_back(arrived);
  }

  // Step 2. Sources in order, those of the node first, then as they came.
  void scatter() {
    const int leader = leads_.leaderFor(node_, rank_);
    if (leader != rank_) {
      BlockList arriving;
      for (int source : neighbours_)
        if (source != rank_) arriving.append(bundles_.arriving(source));
      for (int i = 1; i < topology_.nodes(); ++i) {
        const int from = (node_ - i + topology_.nodes()) % topology_.nodes();
        for (int l = 0; l < leads_.count(from); ++l) {
          const int there = topology_.ranksOn(from)[l];
          if (leads_.leaderFor(from, rank_) != there) continue;
          for (int source : topology_.ranksOn(from)) arriving.append(bundles_.arriving(source));
        }
      }
      arrivals_.push_back({plan_.recv(step(2), leader, arriving)});
    }
    for (int destination : neighbours_) {
      if (destination == rank_ || leads_.leaderFor(node_, destination) != rank_) continue;
      BlockList leaving = carried_[static_cast<size_t>(destination)];
      for (const Relayed& each : relayed_)
        if (each.destination == destination) leaving.append(each.place);
      plan_.send(step(2), destination, leaving, ready_);
    }
  }

  struct Relayed {
    int destination;
    BlockList place;
  };

  PlanBuilder& plan_;
  const Topology& topology_;
  const Leadership leads_;
  const Bundles& bundles_;
  const int rank_, node_;
  const std::span<const int> neighbours_;
  const At at_;
  std::vector<BlockList> carried_;  // by destination: what this node has for it, if I lead for it
  std::vector<Relayed> relayed_;    // from other nodes, for those whom I serve
  std::vector<OpRange> ready_;      // what sends of the next step wait for
  std::vector<OpRange> arrivals_;   // what brings this rank's own
};

}  // namespace

std::vector<OpRange> exchangeByNodes(PlanBuilder& plan, const Topology& topology, int leaders,
                                     int rank, const Bundles& bundles, At* at) {
  plan.relay();
  std::vector<OpRange> arrivals = ByNodes(plan, topology, leaders, rank, bundles, *at).exchange();
  at->step += 3;
  return arrivals;
}

std::vector<OpRange> exchangeInRounds(PlanBuilder& plan, const Topology& topology, int radix,
                                      int rank, const Bundles& bundles, At* at) {
  const int ranks = topology.ranks();
  radix = std::clamp(radix, 2, std::max(ranks, 2));
  plan.relay();
  std::vector<BlockList> place(static_cast<size_t>(ranks));  // of the bundle of each position
  for (int i = 1; i < ranks; ++i) place[i] = bundles.leaving((rank + i) % ranks);
  // About as many bundles as are held: all that move and have digits left.
  std::int64_t held = 0;
  for (std::int64_t left = radix; left < ranks; left *= radix)
    held += (ranks - left) / radix * (radix - 1);
  if (held > 0) plan.reserve(0, static_cast<size_t>(held * blockCount(place[1].runs())));
  std::vector<OpRange> arrived;  // receives, by round
  std::vector<OpRange> ready;    // of what leaves first
  for (int i = 1; i < ranks; ++i) addWait(ready, bundles.ready((rank + i) % ranks));
  for (std::int64_t unit = 1; unit < ranks; unit *= radix, ++at->step) {
    const int firstSend = plan.opCount();
    // The positions whose digit in this round is `digit`, in order.
    const auto eachMoving = [&](int digit, auto function) {
      for (std::int64_t first = digit * unit; first < ranks; first += unit * radix)
        for (std::int64_t i = first; i < std::min<std::int64_t>(first + unit, ranks); ++i)
          function(static_cast<int>(i), static_cast<int>(digit * unit + i - first));
    };
    std::vector<OpRange> waits = arrived;
    waits.insert(waits.end(), ready.begin(), ready.end());
    for (int digit = 1; digit < radix && digit * unit < ranks; ++digit) {
      BlockList leaving;
      eachMoving(digit, [&](int i, int) { leaving.append(place[i]); });
      plan.send(*at, static_cast<int>((rank + digit * unit) % ranks), leaving, waits);
    }
    const int firstRecv = plan.opCount();
    if (firstRecv == firstSend) continue;
    for (int digit = 1; digit < radix && digit * unit < ranks; ++digit) {
      BlockList arriving;
      eachMoving(digit, [&](int i, int back) {
        const bool last = i < unit * radix;  // no digit is left
        // It started from the rank that is as far back as the digits so far say.
        const int source = rank < back ? rank - back + ranks : rank - back;
        const int end = source + i < ranks ? source + i : source + i - ranks;
        place[i] = last ? bundles.arriving(source) : bundles.held(plan, source, end);
        arriving.append(place[i]);
      });
      const int from = static_cast<int>(((rank - digit * unit) % ranks + ranks) % ranks);
      plan.recv(*at, from, arriving);
    }
    arrived.push_back(plan.since(firstRecv));
  }
  return arrived;
}

}  // namespace moeccl
