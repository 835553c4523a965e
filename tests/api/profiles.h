// Profiles made by hand, and what is chosen by them: what the tests of both share.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "moeccl/model.h"
#include "tests/api/ranks.h"

namespace moeccl::test {

inline const Job kJob{.ranks = 4, .nodes = {2, 2}, .algorithms = {}};
inline constexpr moecclGridShape_t kShape = {2, 2, 2, moecclOrderEspEp};

inline moecclGrid_t gridOn(moecclComm_t comm, moecclGridShape_t shape = kShape) {
  moecclGrid_t grid = nullptr;
  check(moecclGridCreate(comm, shape, &grid), comm);
  return grid;
}

inline moecclMoeConfig_t layerConfig() {
  moecclMoeConfig_t config = MOECCL_MOE_CONFIG_INITIALIZER;
  config.tokens = 64;
  config.embedding = 16;
  config.hidden = 32;
  config.experts = 4;
  config.topK = 2;
  config.capacityFactor = 1.0;
  return config;
}

struct Line {
  const char* collective;
  const char* algorithm;
  double alpha, beta;
};

// Samples on the line for one group.
inline void addLine(moecclProfile_t profile, const Line& line, moecclComm_t comm,
                    moecclGrid_t grid) {
  for (std::size_t bytes = 64; bytes <= std::size_t{1} << 20; bytes *= 4) {
    moecclCollectiveSample_t sample = MOECCL_COLLECTIVE_SAMPLE_INITIALIZER;
    sample.collective = line.collective;
    sample.algorithm = line.algorithm;
    sample.comm = comm;
    sample.grid = grid;
    sample.bytes = bytes;
    sample.seconds = line.alpha + line.beta * static_cast<double>(bytes);
    check(moecclProfileAddCollective(profile, &sample));
  }
}

// Everything that S1 and S2 need on the grid, so that S1 is `ratio` times as fast as S2.
inline moecclProfile_t profileOn(moecclComm_t comm, moecclGrid_t grid, double ratio) {
  moecclProfile_t profile = nullptr;
  check(moecclProfileCreate(comm, &profile), comm);
  moecclComm_t mp = nullptr;
  check(moecclGridGetComm(grid, moecclGroupMp, &mp));
  addLine(profile, {"allgather", "ring", 1.0, 0}, mp, nullptr);
  addLine(profile, {"dispatch", "flat", 1.0, 0}, nullptr, grid);
  addLine(profile, {"dispatch", "dedup", 2.0, 0}, nullptr, grid);
  addLine(profile, {"combine", "dedup", 1.0, 0}, nullptr, grid);
  addLine(profile, {"splitdispatch", "flat", 1.0, 0}, nullptr, grid);
  // S1: dispatch, combine, two all-gathers: 4 seconds.
  addLine(profile, {"combineallgather", "sequential", 4.0 * ratio - 1, 0}, nullptr, grid);
  check(moecclProfileFit(profile));
  return profile;
}

inline std::vector<moecclScheduleChoice_t> schedules(moecclGrid_t grid,
                                                     const moecclMoeConfig_t& layer,
                                                     moecclSelectionRule_t rule = moecclRuleModel) {
  moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
  cluster.grid = grid;
  moecclScheduleQuery_t query = MOECCL_SCHEDULE_QUERY_INITIALIZER;
  query.cluster = &cluster;
  query.layer = &layer;
  query.rule = rule;
  std::vector<moecclScheduleChoice_t> choices(moecclNumSchedules);
  int count = static_cast<int>(choices.size());
  check(moecclSelectSchedule(&query, choices.data(), &count));
  choices.resize(static_cast<std::size_t>(count));
  return choices;
}

inline moecclScheduleChoice_t choiceOf(const std::vector<moecclScheduleChoice_t>& choices,
                                       moecclSchedule_t schedule) {
  for (const auto& choice : choices)
    if (choice.schedule == schedule) return choice;
  checkThat(false, "schedule " + std::to_string(schedule) + " is missing");
  return {};
}

}  // namespace moeccl::test
