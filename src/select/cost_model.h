// What a collective costs on one group of ranks, by each way of doing it: by the cluster's profile where
// that has it measured, else by the price of the plans. The two are never compared with each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "algorithms/registry.h"
#include "src/profile/group_text.h"
#include "src/profile/profile.h"
#include "src/select/priced_ways.h"

namespace moeccl {

class CostModel {
 public:
  // Without a profile, or one that has links: typical ones. `ranksOnNode`: of the whole cluster, on its largest
  // node, all of which make such calls at once; 0: as the profile says, or the group's alone. The same on all ranks
  // of the group.
  explicit CostModel(Topology topology, std::shared_ptr<const Profile> profile = nullptr,
                     int ranksOnNode = 0);

  struct Estimate {
    AlgorithmChoice choice;
    double seconds;
    bool measured;
    // The part of seconds that no bytes would take, by the way that is the fastest for none.
    double latency;
  };
  // Of every way, the fastest first; of `given.algorithm` alone where that is fixed. given.parameters has
  // the grid and the experts, where the collective has them. `bytes`: of a rank's send buffer. Empty
  // where nothing is offered.
  std::vector<Estimate> estimates(Collective collective, const AlgorithmChoice& given,
                                  double bytes);
  // The fastest of them, or one that takes for ever where none is offered. Takes no memory and well under a
  // microsecond once the same collective has been asked about, at any size.
  Estimate fastest(Collective collective, const AlgorithmChoice& given, double bytes);
  // The one that is taken for blocks of `blockBytes` bytes where nobody has fixed any.
  AlgorithmChoice choose(Collective collective, const Parameters& problem, std::size_t blockBytes);

  // Finds out now what questions about measured ways need, however many ranks there are to plan for.
  void prepare(Collective collective, const AlgorithmChoice& given);

  // Of one way among those of `given`:
  // What a rank sends to other nodes: the mean of the largest node's.
  double bytesBetween(Collective collective, const AlgorithmChoice& given,
                      const AlgorithmChoice& way, double bytes);
  // Of its plans: equal for ways that do the same.
  std::uint64_t digest(Collective collective, const AlgorithmChoice& given,
                       const AlgorithmChoice& way);
  // The straight line through what was measured, or is priced: seconds = alpha + beta bytes.
  Segment line(Collective collective, const AlgorithmChoice& given, const AlgorithmChoice& way);

  // How a profile calls the group, of a collective on a grid with that.
  std::string where(Collective collective, const AlgorithmChoice& given) const {
    return needsGrid(collective) ? textOf(given.parameters.grid, topology_) : where_;
  }

  const Topology& topology() const { return topology_; }
  // Of the whole cluster, on its largest node.
  int ranksOnNode() const { return ranksOnNode_; }
  const std::shared_ptr<const Profile>& profile() const { return profile_; }

 private:
  // What is known of a way from its plans.
  struct PlanFacts {
    double blocksBetween = 0;
    std::uint64_t digest = 0;
  };
  struct Way {
    AlgorithmChoice choice;
    const Curve* curve;                   // null: priced
    std::vector<PriceLine> lines = {};    // of the price; the highest holds
    std::optional<PlanFacts> plans = {};  // nothing: not asked for yet
  };
  // The ways to do a collective that differ.
  struct Ways {
    Collective collective;
    AlgorithmChoice given;
    double blocks;  // of a rank's send buffer
    std::vector<Way> ways;
    bool measured;
    std::shared_ptr<const PricedWays> priced;  // held for others that ask; null: measured
    double latency;                            // the least of them all for no bytes
  };
  // Null where it is none of them.
  Way* wayOf(Collective collective, const AlgorithmChoice& given, const AlgorithmChoice& way);
  PlanFacts plansOf(Collective collective, const AlgorithmChoice& given,
                    const AlgorithmChoice& way);
  Ways& waysOf(Collective collective, const AlgorithmChoice& given);
  Ways find(Collective collective, const AlgorithmChoice& given) const;
  const Curve* curveOf(Collective collective, const AlgorithmChoice& given,
                       const std::string& where) const;
  double seconds(const Ways& ways, const Way& way, double bytes) const;
  Estimate estimate(const Ways& ways, const Way& way, double bytes) const;
  std::size_t indexOfFastest(const Ways& ways, double bytes) const;

  Topology topology_;
  std::shared_ptr<const Profile> profile_;
  std::string where_;
  int ranksOnNode_;
  Links links_;
  Sharing sharing_;
  std::deque<Ways> known_;  // the one last asked for first
};

}  // namespace moeccl
