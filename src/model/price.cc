// Prices plans: reads their ops into steps of lanes once, then follows each rank's steps and the
// node's uplinks. A price is piecewise linear in the bytes of a block.
#include "src/model/price.h"

#include <algorithm>
#include <cstdint>
#include <unordered_map>

namespace moeccl {
namespace {

// Messages that a rank sends to other nodes at once without their getting in each other's way.
constexpr double kAlone = 4;
// The part of the cost of beginning a step that is left inside a kernel that runs already.
constexpr double kUnderWay = 0.2;

// Blocks that do not lie one after the other are copied before they are sent, or after they came.
bool scattered(std::span<const Blocks> runs) {
  int next = runs[0].first;
  for (const Blocks& run : runs) {
    if (run.buffer != runs[0].buffer || run.first != next || (run.stride != 1 && run.count > 1))
      return true;
    next = run.first + run.count;
  }
  return false;
}

}  // namespace

Sharing sharingOf(int ranksOnNode, int ours, int processors) {
  const double all = std::max(ranksOnNode, ours);
  return {all / ours, processors > 0 ? std::max(1.0, all / processors) : 1};
}

// Turns plans into steps.
class NodePrice::Reader {
 public:
  Reader(NodePrice& price, const Topology& topology, int node)
      : price_(price), topology_(topology), node_(node) {}

  void read(const Plan& plan) {
    layOut(plan);
    uplinksHere_.clear();
    latest_.clear();
    for (const Op& op : plan.ops) {
      Step& step = price_.steps_[first_ + placeOf(op.lane, op.step)];
      addWork(plan, op, step);
      for (const OpRange& range : plan.deps(op)) addWait(plan, op.lane, range, step);
    }
    putInOrder();
    for (const auto& [uplink, sent] : uplinksHere_) {
      Uplink& all = price_.uplinks_[static_cast<std::size_t>(uplink)];
      const double others = std::max(0.0, sent.messages - kAlone);
      all.messages += sent.messages;
      all.blocks += sent.blocks;
      all.crowdedMessages += others * sent.messages;
      all.crowdedBlocks += others * sent.blocks;
      price_.blocksBetween_ += sent.blocks;
    }
  }

  void take(const LeafLoad& leaf) {
    for (std::size_t lane = 0; lane < kMaxLanes; ++lane)
      for (std::size_t step = 0; step < uplinkOf_[lane].size(); ++step)
        if (const int uplink = uplinkOf_[lane][step]; uplink >= 0)
          price_.uplinks_[static_cast<std::size_t>(uplink)].blocksOnLeaf =
              leaf.blocksIn(static_cast<int>(lane), static_cast<int>(step));
    price_.allOnLeaf_ = leaf.allBlocks();
  }

 private:
  // A place for every step up to each lane's last.
  void layOut(const Plan& plan) {
    lanes_.fill(0);
    for (const Op& op : plan.ops) {
      std::size_t& end = lanes_[static_cast<std::size_t>(op.lane) + 1];
      end = std::max(end, static_cast<std::size_t>(op.step) + 1);
    }
    for (std::size_t lane = 0; lane < kMaxLanes; ++lane) {
      auto& known = uplinkOf_[lane];
      known.resize(std::max(known.size(), lanes_[lane + 1]), -1);
      lanes_[lane + 1] += lanes_[lane];
    }
    first_ = price_.steps_.size();
    price_.steps_.resize(first_ + lanes_[kMaxLanes]);
    price_.ranks_.push_back({first_, lanes_[kMaxLanes]});
    for (std::size_t lane = 0; lane < kMaxLanes; ++lane)
      for (std::size_t at = lanes_[lane]; at < lanes_[lane + 1]; ++at) {
        price_.steps_[first_ + at].after.fill(-1);
        if (at > lanes_[lane]) price_.steps_[first_ + at].after[lane] = static_cast<int>(at) - 1;
      }
  }

  std::size_t placeOf(int lane, int step) const {
    return lanes_[static_cast<std::size_t>(lane)] + static_cast<std::size_t>(step);
  }

  // Puts steps after all that they wait for. In a plan with a circle some are left out, but no
  // verified plan has any.
  void putInOrder() {
    std::vector<char> done(lanes_[kMaxLanes]);
    auto next = lanes_;  // of each lane
    for (bool goesOn = true; goesOn;) {
      goesOn = false;
      for (std::size_t lane = 0; lane < kMaxLanes; ++lane)
        for (; next[lane] < lanes_[lane + 1] && isReady(next[lane], done); ++next[lane]) {
          done[next[lane]] = 1;
          price_.order_.push_back(next[lane]);
          goesOn = true;
        }
    }
    price_.order_.resize(first_ + lanes_[kMaxLanes], 0);
  }

  bool isReady(std::size_t step, const std::vector<char>& done) const {
    return std::ranges::all_of(price_.steps_[first_ + step].after, [&](int earlier) {
      return earlier < 0 || done[static_cast<std::size_t>(earlier)] != 0;
    });
  }

  // The uplink of a message. All ranks' messages of one lane and step share one.
  int uplinkOf(const Op& op) {
    int& uplink = uplinkOf_[static_cast<std::size_t>(op.lane)][static_cast<std::size_t>(op.step)];
    if (uplink < 0) {
      uplink = static_cast<int>(price_.uplinks_.size());
      price_.uplinks_.emplace_back();
    }
    return uplink;
  }

  void addWork(const Plan& plan, const Op& op, Step& step) {
    const std::span<const Blocks> runs = op.kind == OpKind::recv ? plan.dst(op) : plan.src(op);
    const double blocks = static_cast<double>(blockCount(runs)) / plan.pieces;
    if (op.kind == OpKind::copy || op.kind == OpKind::reduce) {
      step.blocksMoved += blocks;
      return;
    }
    if (scattered(runs)) step.blocksMoved += blocks;
    const bool between = topology_.nodeOf(op.peer) != node_;
    (between ? step.between : step.inNode) = true;
    (between ? step.messagesBetween : step.messagesIn) += 0.5;
    (between ? step.blocksBetween : step.blocksIn) += 0.5 * blocks;
    if (!between || op.kind != OpKind::send) return;
    step.uplink = uplinkOf(op);
    Uplink& sent = uplinksHere_[step.uplink];
    sent.messages += 1;
    sent.blocks += blocks;
  }

  using Latest = std::array<int, kMaxLanes>;

  // Lanes run their steps in order, so of each the latest is enough.
  void addWait(const Plan& plan, int lane, const OpRange& range, Step& step) {
    const Latest latest = latestOf(plan, range);
    for (int other = 0; other < kMaxLanes; ++other) {
      const int at = latest[static_cast<std::size_t>(other)];
      int& after = step.after[static_cast<std::size_t>(other)];
      if (other != lane && at >= 0) after = std::max(after, static_cast<int>(placeOf(other, at)));
    }
  }

  // Many ops may wait for the same long range.
  Latest latestOf(const Plan& plan, const OpRange& range) {
    constexpr int kShort = 4;
    if (range.count <= kShort) return scan(plan, range);
    const auto key = static_cast<std::uint64_t>(range.first) << 32 |
                     static_cast<std::uint64_t>(static_cast<std::uint32_t>(range.count));
    const auto [known, isNew] = latest_.try_emplace(key);
    if (isNew) known->second = scan(plan, range);
    return known->second;
  }

  static Latest scan(const Plan& plan, const OpRange& range) {
    Latest latest;
    latest.fill(-1);
    for (int i = range.first; i < range.first + range.count; ++i) {
      const Op& op = plan.ops[static_cast<std::size_t>(i)];
      int& step = latest[static_cast<std::size_t>(op.lane)];
      step = std::max(step, op.step);
    }
    return latest;
  }

  NodePrice& price_;
  const Topology& topology_;
  int node_;
  // The rank that is being read: where its steps begin, and, counted from there, where those of
  // each lane begin.
  std::size_t first_ = 0;
  std::array<std::size_t, kMaxLanes + 1> lanes_{};
  std::array<std::vector<int>, kMaxLanes> uplinkOf_;  // by lane and step
  std::unordered_map<int, Uplink> uplinksHere_;       // of one rank
  std::unordered_map<std::uint64_t, Latest> latest_;  // of one rank's ranges
};

// The costs of one question: a block size on these links.
struct NodePrice::Costs {
  const Links& links;
  double blockBytes, slowdown;
  std::vector<PriceLine> onUplink;  // of each of uplinks_

  const PriceLine& later(const PriceLine& a, const PriceLine& b) const {
    return a.at(blockBytes) < b.at(blockBytes) ? b : a;
  }
  PriceLine work(const Step& step) const {
    const PriceLine once = {
        step.begins *
            (step.messagesIn * links.overheadInNode + step.messagesBetween * links.overheadBetween),
        step.blocksIn * links.betaInNode + step.blocksBetween * links.betaBetween +
            step.blocksMoved * links.betaMemory};
    return slowdown * once;
  }
  double latency(const Step& step) const {
    return step.begins *
           std::max(step.between ? links.latencyBetween : 0, step.inNode ? links.latencyInNode : 0);
  }
};

NodePrice::NodePrice(const Topology& topology, int node, std::span<const Plan> plans, bool native,
                     const LeafLoad* leaf) {
  Reader reader(*this, topology, node);
  for (const Plan& plan : plans) reader.read(plan);
  if (leaf != nullptr) reader.take(*leaf);
  if (native)
    for (Step& step : steps_)
      if (std::ranges::any_of(step.after, [](int earlier) { return earlier >= 0; }))
        step.begins = kUnderWay;
  if (!plans.empty()) blocksBetween_ /= static_cast<double>(plans.size());
}

PriceLine NodePrice::lineOf(Rank rank, const Costs& costs, std::vector<PriceLine>& ends) const {
  ends.resize(rank.count);
  PriceLine work, last;
  for (const std::size_t at : std::span(order_).subspan(rank.first, rank.count)) {
    const Step& step = steps_[rank.first + at];
    PriceLine end;
    for (const int earlier : step.after)
      if (earlier >= 0) end = costs.later(end, ends[static_cast<std::size_t>(earlier)]);
    const PriceLine own = costs.work(step);
    work += own;
    end += own;
    end.alpha += costs.latency(step);
    if (step.uplink >= 0) end += costs.onUplink[static_cast<std::size_t>(step.uplink)];
    ends[at] = end;
    last = costs.later(last, end);
  }
  return costs.later(last, work);
}

PriceLine NodePrice::lineAt(double blockBytes, const Links& links, const Sharing& sharing) const {
  Costs costs{links, blockBytes, sharing.slowdown, {}};
  PriceLine slowest;
  for (const Uplink& uplink : uplinks_) {
    const PriceLine once = {
        links.gapUplink * (uplink.messages + links.crowding * uplink.crowdedMessages),
        links.betaUplink * (uplink.blocks + links.crowding * uplink.crowdedBlocks)};
    slowest += sharing.groups * once;
    costs.onUplink.push_back(
        sharing.groups *
        PriceLine{once.alpha, std::max(once.beta, links.betaUplink * uplink.blocksOnLeaf)});
  }
  slowest = costs.later(slowest, {0, sharing.groups * links.betaUplink * allOnLeaf_});
  std::vector<PriceLine> ends;
  for (const Rank rank : ranks_) slowest = costs.later(slowest, lineOf(rank, costs, ends));
  return slowest;
}

// A price is a maximum of lines, so it is convex: where the lines that it follows at two sizes
// meet, and it is no higher there, it follows no third one between them.
std::vector<PriceLine> NodePrice::lines(const Links& links, const Sharing& sharing) const {
  constexpr double kLargest = 1LL << 50;
  constexpr double kSame = 1e-9;  // relative: lines that differ by rounding are one
  std::vector<PriceLine> found = {lineAt(0, links, sharing)};
  std::vector<PriceLine> above = {lineAt(kLargest, links, sharing)};  // the next one last
  while (!above.empty()) {
    const PriceLine low = found.back(), high = above.back();
    if (low.alpha > high.alpha && low.beta < high.beta) {
      const double meet = (low.alpha - high.alpha) / (high.beta - low.beta);
      const PriceLine between = lineAt(meet, links, sharing);
      if (between.at(meet) > low.at(meet) * (1 + kSame)) {
        above.push_back(between);
        continue;
      }
    }
    if (high != low) found.push_back(high);
    above.pop_back();
  }
  return found;
}

}  // namespace moeccl
