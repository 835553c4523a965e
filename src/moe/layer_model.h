// What a layer costs on a grid under each schedule: its exchanges by their fastest algorithms, and
// its local work.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/moe/schedule_terms.h"
#include "src/select/cluster.h"
#include "src/select/cost_model.h"

namespace moeccl {

// Those among which the model chooses, with none first.
inline constexpr std::array<std::int64_t, 4> kChunks = {1, 2, 4, 8};

class LayerModel {
 public:
  // What is fixed holds for the grid's communicator and its groups. The same on all ranks.
  explicit LayerModel(const Cluster& cluster);

  // An exchange by its fastest algorithm.
  struct ExchangeEstimate {
    Pass pass;
    Exchange exchange;
    AlgorithmChoice choice;  // of the slowest group of the kind
    double seconds;          // of one call
    bool measured;
    std::uint64_t digest;  // of the plans of all groups of the kind
  };
  struct Estimate {
    moecclSchedule_t schedule;
    double seconds;
    double communication;
    double bytesBetween;  // that a rank sends to other nodes: the mean of the largest node's
    bool measured;        // all of it
    std::vector<ExchangeEstimate> exchanges;
    std::int64_t chunks;  // of S1; 1 of others
  };
  // Finds out what has been measured, so that no question has to.
  void prepare(const Grid& grid);
  // Of the schedules in `offered`, the fastest first.
  std::vector<Estimate> estimates(std::span<const moecclSchedule_t> offered,
                                  std::span<const Pass> passes, const LayerSizes& sizes);
  // The same with every term and every algorithm, for people.
  std::string explain(std::span<const moecclSchedule_t> offered, std::span<const Pass> passes,
                      const LayerSizes& sizes);

  // What a profile stores of a layer that was measured.
  LayerKey keyOf(moecclSchedule_t schedule, std::int64_t chunks, Pass pass) const;
  LayerSample sampleOf(moecclSchedule_t schedule, Pass pass, const LayerSizes& sizes);

  // Groups of one kind may lie differently on the nodes: these are the different ones. A call of
  // all of them takes as long as the slowest.
  std::span<CostModel> groups(GroupKind kind) { return groups_[static_cast<std::size_t>(kind)]; }
  AlgorithmChoice given(const Exchange& exchange, const LayerSizes& sizes) const;

 private:
  double localSeconds(Pass pass, const ScheduleTerms& terms, const LayerSizes& sizes) const;
  // Within a layer, against the parts by themselves; nothing where no such layers were measured.
  const LayerFactors* measured(moecclSchedule_t schedule, std::int64_t chunks, Pass pass) const;
  // In chunks that were not measured as without: what is hidden behind what is never assumed.
  LayerFactors factorsOf(moecclSchedule_t schedule, std::int64_t chunks, Pass pass) const;
  // Into how many chunks the schedule may cut its tokens.
  std::vector<std::int64_t> chunksOf(moecclSchedule_t schedule, std::span<const Pass> passes,
                                     const LayerSizes& sizes) const;
  ExchangeEstimate estimate(Pass pass, const Exchange& exchange, const LayerSizes& sizes,
                            double* latency, double* bytesBetween);
  Estimate estimate(moecclSchedule_t schedule, std::span<const Pass> passes,
                    const LayerSizes& sizes);

  FixedAlgorithms fixed_;
  std::shared_ptr<const Profile> profile_;
  std::string where_;  // the grid
  // Of layers that were measured: by schedule, chunks (kChunks) and pass.
  std::array<std::array<std::array<const LayerCurve*, 2>, kChunks.size()>, moecclNumSchedules>
      layers_{};
  // Of local work where ranks share processors: against where it was measured, and against one
  // alone.
  double slowdown_ = 1, slowdownAlone_ = 1;
  std::array<std::vector<CostModel>, kGroupKinds> groups_;
};

const char* nameOf(moecclSchedule_t schedule);

}  // namespace moeccl
