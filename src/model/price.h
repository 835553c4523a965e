// What a plan costs, from what links cost: for clusters that nobody has measured. It knows no
// algorithm by name.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "algorithms/plan.h"
#include "algorithms/topology.h"
#include "src/model/leaves.h"
#include "src/model/links.h"

namespace moeccl {

// What the ranks of a node share.
struct Sharing {
  // Ranks of the whole cluster on the node, for each of the group's: all groups make the same call
  // at once, through one uplink.
  double groups = 1;
  // Ranks of the node for each processor, where there are more than one: all take so much longer
  // for their work.
  double slowdown = 1;

  bool operator==(const Sharing&) const = default;
};
// `ranksOnNode`: of the whole cluster, of which `ours` are the group's. No processors: they are not
// known, and taken to be enough.
Sharing sharingOf(int ranksOnNode, int ours, int processors);

// A price as blocks grow: seconds = alpha + beta * bytes of a block.
struct PriceLine {
  double alpha = 0, beta = 0;

  double at(double blockBytes) const { return alpha + beta * blockBytes; }
  PriceLine& operator+=(const PriceLine& more) {
    alpha += more.alpha;
    beta += more.beta;
    return *this;
  }
  friend PriceLine operator*(double times, const PriceLine& line) {
    return {times * line.alpha, times * line.beta};
  }
  bool operator==(const PriceLine&) const = default;
};

// The plans of a node's ranks, made ready to be priced at any size, on any links.
//
// Plans run by streams (src/verify/verify.h): a step begins when its lane's step before has ended,
// and those of other lanes that it waits for. It takes its own work, then the time on the uplink of
// its messages between nodes, together with those of the node's other ranks in the same step, then
// the latency. So lanes overlap; but a rank does one thing at a time, and an uplink carries one: a
// plan takes no less than all of its work, and all of what the uplink carries. Ranks of other nodes
// are taken to be no slower. Where a leaf switch's uplink carries less than its nodes send, their
// steps take as long as it takes for theirs.
class NodePrice {
 public:
  // plans[i] is that of the node's i-th rank. native: a function of the executor's does the same in
  // one launch, so that only a rank's first step has the whole cost of beginning. leaf: null where
  // one switch has all nodes.
  NodePrice(const Topology& topology, int node, std::span<const Plan> plans, bool native = false,
            const LeafLoad* leaf = nullptr);

  // Until the slowest rank has done. Blocks of `blockBytes` bytes. Never falls as blocks or costs
  // grow.
  double seconds(double blockBytes, const Links& links, const Sharing& sharing = {}) const {
    return lineAt(blockBytes, links, sharing).at(blockBytes);
  }
  // The same for blocks of any size up to 2^50 bytes, to ask for many sizes: the price is the
  // highest of these lines, but for rounding.
  std::vector<PriceLine> lines(const Links& links, const Sharing& sharing = {}) const;

  // Blocks that a rank sends to other nodes: the mean of the node's ranks.
  double blocksBetween() const { return blocksBetween_; }
  // How many steps there are to go through: what pricing takes.
  std::size_t steps() const { return steps_.size(); }

 private:
  // What a rank has to do in one step; blocks are the collective's, whole ones.
  struct Step {
    int uplink = -1;                      // place in uplinks_; -1: nothing goes to other nodes
    bool inNode = false;                  // some message does not leave the node
    bool between = false;                 // some message does
    double messagesIn = 0, blocksIn = 0;  // sent or received in the node, each counting half
    double messagesBetween = 0, blocksBetween = 0;
    double blocksMoved = 0;  // read by copies and reductions
    // The latest step of each lane that it waits for, counted from the rank's first; -1: none. In
    // its own lane that is the one before.
    std::array<int, kMaxLanes> after;
    double begins = 1;  // what of overhead and latency it has
  };
  // What all ranks of the node send through the uplink in one step; the latter, times the messages
  // in each other's way. And how many it could send until the leaf switch's uplink has all of the
  // step's.
  struct Uplink {
    double messages = 0, blocks = 0;
    double crowdedMessages = 0, crowdedBlocks = 0;
    double blocksOnLeaf = 0;
  };
  struct Rank {
    std::size_t first, count;  // of its steps
  };
  class Reader;
  struct Costs;

  // The line that the price follows at this size: that of the slowest way through the steps.
  PriceLine lineAt(double blockBytes, const Links& links, const Sharing& sharing) const;
  PriceLine lineOf(Rank rank, const Costs& costs, std::vector<PriceLine>& ends) const;

  std::vector<Step> steps_;  // rank by rank, lane by lane
  std::vector<std::size_t>
      order_;  // of each rank's steps, after all that they wait for; from its first
  std::vector<Rank> ranks_;
  std::vector<Uplink> uplinks_;
  double blocksBetween_ = 0;
  double allOnLeaf_ = 0;  // the same of all steps together
};

}  // namespace moeccl
