// What a layer costs on a grid under each schedule: its exchanges by their fastest algorithms, and
// its local work. What goes on at once follows from the schedule's streams (critical_path.h).
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/model/cluster.h"
#include "src/model/corrections.h"
#include "src/model/cost_model.h"
#include "src/model/critical_path.h"
#include "src/model/route_model.h"
#include "src/model/schedule_list.h"
#include "src/model/schedule_terms.h"

namespace moeccl {

// The numbers of chunks among which the model chooses, one first.
inline constexpr std::array<std::int64_t, 4> kChunks = {1, 2, 4, 8};

class LayerModel {
 public:
  // What is fixed holds for the grid's communicator and its groups. The same on all ranks.
  explicit LayerModel(const Cluster& cluster);

  // An exchange by its fastest algorithm.
  struct ExchangeEstimate {
    Pass pass;
    Exchange exchange;
    CostModel* group = nullptr;   // the slowest of the kind
    AlgorithmChoice choice = {};  // its
    double seconds = 0;           // of one call
    double latency = 0;           // of these: what no bytes would take
    double bytesBetween = 0;      // that a rank sends to other nodes
    bool measured = true;
    std::uint64_t digest = 0;     // of the plans of all groups of the kind
    std::string_view route = {};  // the algorithm of token routing, instead of `choice`

    bool betweenNodes() const { return bytesBetween > 0; }
  };
  struct Estimate {
    LayerShape shape;  // with its schedule and chunks
    double seconds;
    double communication;  // of these: beyond local work
    double bytesBetween;   // that a rank sends to other nodes: the mean of the largest node's
    bool measured;         // all of it
    // Whether automatic choice may take it: copies of a token's rows, each computed among others,
    // can differ in their last bits, and so can what the ranks of an MP group learn from them.
    bool automatic;
    std::vector<ExchangeEstimate> exchanges;
    // What it takes with token routing if it goes without, and the other way round; 0: it has no
    // choice.
    double otherwise = 0;
  };
  // Whether the model decides on chunks and on token routing; else they are as shapes say.
  struct Free {
    bool chunks, routing;
  };
  // Finds out what has been measured, so that no question has to.
  void prepare();
  // Estimates of a layer under each of these schedules, the fastest first, and behind them those
  // that are not automatic.
  std::vector<Estimate> estimates(std::span<const LayerShape> offered, std::span<const Pass> passes,
                                  Free free);
  // The same with every phase and every algorithm, for people.
  std::string explain(std::span<const LayerShape> offered, std::span<const Pass> passes, Free free);

  // The same layers that automatic choice may take, each by phases and kinds of cost; in every
  // number of chunks; with token routing or without as is predicted to be faster. Takes
  // milliseconds.
  struct Candidate {
    LayerShape shape;
    Alternative costs;
  };
  std::vector<Candidate> candidates(std::span<const LayerShape> offered,
                                    std::span<const Pass> passes, Free free);

  // Groups of one kind may lie differently on the nodes: these are the different ones. A call of
  // all of them takes as long as the slowest.
  std::span<CostModel> groups(GroupKind kind) { return groups_[static_cast<std::size_t>(kind)]; }
  AlgorithmChoice given(Collective collective) const;

 private:
  static constexpr double kForEver = std::numeric_limits<double>::infinity();

  double localSeconds(Pass pass, const LocalFeatures& work, const LayerShape& shape) const;
  // A line for each phase of the value, with its price, and for each exchange its algorithms'.
  // `exchanges`: the estimates of those of the terms.
  std::string explainPhases(const LayerShape& shape, Pass pass, const ScheduleTerms& terms,
                            std::span<const ExchangeEstimate> exchanges);
  // The layer in every number of chunks that it may be cut into, whole first.
  std::vector<LayerShape> cut(const LayerShape& shape, Free free) const;
  // Whether token routing can save anything: on several nodes, of several choices.
  bool canSave(const LayerShape& shape) const;
  ExchangeEstimate estimate(const LayerShape& shape, Pass pass, const Exchange& exchange);
  ExchangeEstimate estimateRouted(const LayerShape& shape, Pass pass, const Exchange& exchange);
  // Estimates by routing algorithm, of tokens that choose evenly. Links say by how much algorithms
  // differ. The one that sends what an all-to-all-v does takes as long as an all-to-all-v.
  std::vector<RouteEstimate> routesOf(const LayerShape& shape, const Exchange& exchange);
  struct PassPrice {
    double seconds, communication;
  };
  // `exchanges`: those of the terms.
  PassPrice priceOf(const LayerShape& shape, Pass pass, const ScheduleTerms& terms,
                    std::span<const ExchangeEstimate> exchanges) const;
  Estimate fastestOf(const LayerShape& shape, std::span<const Pass> passes, Free free);
  Estimate estimate(const LayerShape& shape, std::span<const Pass> passes);
  Alternative costsOf(const Estimate& estimate, std::span<const Pass> passes);
  Costs costsOf(const ExchangeEstimate& it, int calls);

  FixedAlgorithms fixed_;
  std::shared_ptr<const Profile> profile_;
  Grid grid_;
  moecclLinks_t kind_;
  bool background_;  // exchanges go on while ranks compute
  // Slowdowns of local work where ranks share processors: against where it was measured, and
  // against a rank alone.
  double slowdown_ = 1, slowdownAlone_ = 1;
  std::array<std::vector<CostModel>, kGroupKinds> groups_;
};

}  // namespace moeccl
