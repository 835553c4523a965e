// Profiles made by hand, and what is chosen by them: what the tests of both share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
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

inline bool isMeasured(const moecclChoice_t& choice) {
  return std::string_view(choice.source) == "curves";
}

// A schedule that a layer may run under, with what its exchanges are.
struct Choice : moecclChoice_t {
  std::string exchanges;  // "dispatch: dedup, combine: flat"
  std::vector<std::string> algorithms;
  std::vector<std::uint64_t> digests;
};

inline std::vector<Choice> schedules(const moecclQuery_t& query) {
  moecclChoices_t choices = nullptr;
  int count = 0;
  check(moecclSelect(&query, &choices, &count));
  std::vector<Choice> all;
  for (int i = 0; i < count; ++i) {
    Choice& one = all.emplace_back(Choice{MOECCL_CHOICE_INITIALIZER, {}, {}, {}});
    check(moecclChoicesGet(choices, i, -1, &one));
    for (int at = 0; at < one.nExchanges; ++at) {
      moecclChoice_t exchange = MOECCL_CHOICE_INITIALIZER;
      check(moecclChoicesGet(choices, i, at, &exchange));
      one.exchanges += (at > 0 ? ", " : "") + std::string(exchange.phase) + ": " + exchange.name;
      one.algorithms.emplace_back(exchange.name);
      one.digests.push_back(exchange.digest);
    }
  }
  check(moecclChoicesDestroy(choices));
  return all;
}

inline std::vector<Choice> schedules(moecclGrid_t grid, const moecclMoeConfig_t& layer) {
  moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
  cluster.grid = grid;
  moecclQuery_t query = MOECCL_QUERY_INITIALIZER;
  query.cluster = &cluster;
  query.layer = &layer;
  return schedules(query);
}

inline Choice choiceOf(const std::vector<Choice>& choices, moecclSchedule_t schedule) {
  for (const auto& choice : choices)
    if (choice.schedule == schedule) return choice;
  checkThat(false, "schedule " + std::to_string(schedule) + " is missing");
  return {};
}

struct Algorithm {
  std::string algorithm;
  double seconds, alpha, beta;
  bool measured;
  std::uint64_t digest;
};
inline moecclQuery_t algorithmQuery(const moecclCluster_t& cluster, const char* collective,
                                    std::size_t bytes) {
  moecclQuery_t query = MOECCL_QUERY_INITIALIZER;
  query.cluster = &cluster;
  query.collective = collective;
  query.bytes = bytes;
  return query;
}
inline std::vector<Algorithm> algorithmsFor(const moecclCluster_t& cluster, const char* collective,
                                            std::size_t bytes) {
  const moecclQuery_t query = algorithmQuery(cluster, collective, bytes);
  moecclChoices_t choices = nullptr;
  int count = 0;
  check(moecclSelect(&query, &choices, &count));
  std::vector<Algorithm> all;
  for (int i = 0; i < count; ++i) {
    moecclChoice_t it = MOECCL_CHOICE_INITIALIZER;
    check(moecclChoicesGet(choices, i, -1, &it));
    all.push_back({it.name, it.seconds, it.alpha, it.beta, isMeasured(it), it.digest});
  }
  check(moecclChoicesDestroy(choices));
  return all;
}

}  // namespace moeccl::test
