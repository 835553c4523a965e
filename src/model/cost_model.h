// What a collective costs on one group of ranks, by each candidate: by the cluster's profile where
// that has it measured, else by the price of the plans. The two are never compared with each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "algorithms/registry.h"
#include "src/model/group_text.h"
#include "src/model/priced_candidates.h"
#include "src/model/profile.h"

namespace moeccl {

class CostModel {
 public:
  // Without a profile, or one that has links: those of `typical`. `ranksOnNode`: of the whole
  // cluster, on its largest node, all of which make such calls at once; 0: as the profile says, or
  // the group's alone. What a profile has measured is of one switch, so where there are leaves
  // prices hold. The same on all ranks of the group.
  explicit CostModel(Topology topology, std::shared_ptr<const Profile> profile = nullptr,
                     int ranksOnNode = 0, const Typical& typical = {}, Leaves leaves = {});

  struct Estimate {
    AlgorithmChoice choice;
    double seconds;
    bool measured;
    // The part of seconds that no bytes would take, by the candidate that is the fastest for none.
    double latency;
  };
  // Estimates of every candidate, the fastest first, or of `given.algorithm` alone where that is
  // fixed. given.parameters has the grid and the experts, where the collective has them. `bytes`:
  // of a rank's send buffer. Empty where nothing is offered.
  std::vector<Estimate> estimates(Collective collective, const AlgorithmChoice& given,
                                  double bytes);
  // The fastest of them, or one that takes for ever where none is offered. Takes no memory and well
  // under a microsecond once the same collective has been asked about, at any size.
  Estimate fastest(Collective collective, const AlgorithmChoice& given, double bytes);
  // The one that is taken for blocks of `blockBytes` bytes where nobody has fixed any: the fastest
  // that `serves` is true of, or the fastest where it is true of none. No `serves`: true of all. In
  // all-to-all-v, whose blocks differ, algorithms that relay must be clearly faster than others.
  // `padded`: bytes that a block takes where it is relayed; 0: no more than elsewhere.
  AlgorithmChoice choose(Collective collective, const Parameters& problem, std::size_t blockBytes,
                         const std::function<bool(const AlgorithmChoice&)>& serves = {},
                         std::size_t padded = 0);

  // Seconds by the profile for blocks of `blockBytes` bytes; nothing where it has not measured
  // them.
  std::optional<double> measured(const AlgorithmChoice& choice, std::size_t blockBytes);

  // Finds out now what questions about measured candidates need, however many ranks there are to
  // plan for.
  void prepare(Collective collective, const AlgorithmChoice& given);

  // The functions from here to line() are about one candidate among those of `given`.

  // Bytes that a rank sends to other nodes: the mean of the largest node's ranks.
  double bytesBetween(Collective collective, const AlgorithmChoice& given,
                      const AlgorithmChoice& candidate, double bytes);
  // The digest of its plans, equal for candidates that do the same.
  std::uint64_t digest(Collective collective, const AlgorithmChoice& given,
                       const AlgorithmChoice& candidate);
  // The shares of its price that stay if links between nodes cost nothing: one of what it takes for
  // no bytes, and one of what it takes beyond. Takes milliseconds.
  struct Shares {
    double latency = 0, bytes = 0;
  };
  Shares inNode(Collective collective, const AlgorithmChoice& given,
                const AlgorithmChoice& candidate, double bytes);
  // The straight line through what was measured, or is priced: seconds = alpha + beta bytes.
  Line line(Collective collective, const AlgorithmChoice& given, const AlgorithmChoice& candidate);

  // How a profile calls the group, of a collective on a grid with that.
  std::string where(Collective collective, const AlgorithmChoice& given) const {
    return needsGrid(collective) ? textOf(given.parameters.grid, topology_) : where_;
  }

  const Topology& topology() const { return topology_; }
  // The links and the sharing by which plans are priced that nobody has measured.
  const Links& links() const { return links_; }
  const Sharing& sharing() const { return sharing_; }
  // Ranks of the whole cluster on its largest node.
  int ranksOnNode() const { return ranksOnNode_; }
  const std::shared_ptr<const Profile>& profile() const { return profile_; }
  // A number that no other model has, or had.
  unsigned long number() const { return number_; }

 private:
  // What is known of a candidate from its plans.
  struct PlanFacts {
    double blocksBetween = 0;
    std::uint64_t digest = 0;
    bool relays = false;
  };
  struct Candidate {
    AlgorithmChoice choice;
    const Curve* curve;                   // null: priced
    std::vector<PriceLine> lines = {};    // of the price; the highest holds
    std::optional<PlanFacts> plans = {};  // nothing: not asked for yet
  };
  // The candidates for a collective whose plans differ.
  struct Candidates {
    Collective collective;
    AlgorithmChoice given;
    double blocks;  // of a rank's send buffer
    std::vector<Candidate> all;
    bool measured;
    double latency;  // the least of them all for no bytes
  };
  // Null where it is none of them.
  Candidate* candidateOf(Collective collective, const AlgorithmChoice& given,
                         const AlgorithmChoice& candidate);
  const PlanFacts& factsOf(Candidate& candidate) const;
  PlanFacts plansOf(Collective collective, const AlgorithmChoice& given,
                    const AlgorithmChoice& candidate);
  Candidates& candidatesOf(Collective collective, const AlgorithmChoice& given);
  Candidates find(Collective collective, const AlgorithmChoice& given) const;
  const Curve* curveOf(Collective collective, const AlgorithmChoice& given,
                       const std::string& where) const;
  double seconds(const Candidates& candidates, const Candidate& candidate, double bytes) const;
  Estimate estimate(const Candidates& candidates, const Candidate& candidate, double bytes) const;

  Topology topology_;
  std::shared_ptr<const Profile> profile_;
  std::string where_;
  int ranksOnNode_;
  Links links_;
  bool native_;
  Sharing sharing_;
  Leaves leaves_;
  unsigned long number_;
  std::deque<Candidates> known_;  // the one last asked for first
};

}  // namespace moeccl
