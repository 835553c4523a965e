// Rows by token: one for each rank that has an expert of the token, against plain loops.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "moeccl/route.h"
#include "tests/api/results.h"
#include "tests/api/route_world.h"

namespace moeccl::test {
namespace {

constexpr Backend kProcesses = {"processes", true, true};

struct Row {
  int source, token;
};

// What comes to each position of the grid, in order. Where room is short a rank drops tokens, not
// choices of experts as the world does.
class Expected {
 public:
  explicit Expected(const World& world) : world_(world), c_(world.c) {
    for (int position = 0; position < world.ep; ++position) {
      std::vector<std::vector<Row>> from;
      std::vector<int64_t> wants;
      for (int source = 0; source < c_.ranks(); ++source) {
        from.emplace_back();
        for (int token = 0; token < world.tokens(source); ++token)
          if (chooses(source, token, position)) from.back().push_back({source, token});
        wants.push_back(std::ssize(from.back()));
      }
      const int64_t all = std::numeric_limits<int64_t>::max();
      const std::vector<int64_t> has = handOut(wants, c_.maxRows > 0 ? c_.maxRows : all, 1);
      rows_.emplace_back();
      for (size_t source = 0; source < from.size(); ++source)
        rows_.back().insert(rows_.back().end(), from[source].begin(),
                            from[source].begin() + has[source]);
    }
  }

  const std::vector<Row>& at(int position) const { return rows_[position]; }
  bool comes(int source, int token, int position) const {
    return std::ranges::any_of(
        rows_[position], [&](const Row& it) { return it.source == source && it.token == token; });
  }
  int expert(int source, int token, int choice) const {
    return world_.chosen[source][token * c_.choices + choice];
  }
  int64_t dropped(int rank) const {
    int64_t count = 0;
    for (int token = 0; token < world_.tokens(rank); ++token)
      for (int choice = 0; choice < c_.choices; ++choice)
        if (const int it = expert(rank, token, choice); it >= 0)
          count += !comes(rank, token, world_.holderOf(it));
    return count;
  }

 private:
  bool chooses(int source, int token, int position) const {
    for (int choice = 0; choice < c_.choices; ++choice)
      if (const int it = expert(source, token, choice); it >= 0 && world_.holderOf(it) == position)
        return true;
    return false;
  }

  const World& world_;
  const Case& c_;
  std::vector<std::vector<Row>> rows_;
};

// 3.5 and -3..3: exact in float8.
float element(int source, int token, int64_t i) {
  return i % 128 == 0 ? 3.5f : small(source, token, i);
}
float made(const Row& row, int position, int shard, int64_t i) {
  return small(row.source * 50 + row.token, position * 10 + shard, i);
}
float ofWeight(const Row& row, int shard, int choice) {
  return small(row.source * 50 + row.token, shard, choice + 1000);
}

std::vector<float> tokensOf(const World& world, int rank) {
  std::vector<float> all;
  for (int token = 0; token < world.tokens(rank); ++token)
    for (int64_t i = 0; i < world.c.hidden; ++i) all.push_back(element(rank, token, i));
  return all;
}

void requireChoices(const World& world, const std::vector<Row>& rows, int rank,
                    const moecclRows_t& come) {
  const Case& c = world.c;
  const int position = world.positionOf(rank);
  checkThat(come.rows == std::ssize(rows), "another number of rows");
  checkThat(come.begins[0] == 0 && come.begins[1] == come.rows, "rows begin elsewhere");
  for (int source = 0; source < c.ranks(); ++source)
    checkThat(come.counts[source] == std::ranges::count(rows, source, &Row::source),
              "another number of rows from a rank");
  checkThat(rows.empty() || (come.weights != nullptr) == (c.weights == moecclRouteWeightsRows),
            "weights of rows");
  for (size_t row = 0; row < rows.size(); ++row)
    for (int choice = 0; choice < c.choices; ++choice) {
      const size_t at = row * static_cast<size_t>(c.choices) + static_cast<size_t>(choice);
      const World::Choice its{rows[row].source, rows[row].token, choice};
      const int expert = world.chosen[its.source][its.token * c.choices + choice];
      const bool here = expert >= 0 && world.holderOf(expert) == position;
      checkThat(come.experts[at] == (here ? expert - world.firstExpert(position) : -1),
                "another expert of a row");
      if (come.weights != nullptr)
        checkThat(come.weights[at] == (here ? world.weight(its) : 0), "another weight of a row");
    }
}

void exerciseByToken(const World& world, const Expected& expected, moecclComm_t comm,
                     moecclRoute_t route, int rank) {
  const Case& c = world.c;
  const auto ok = [&](moecclResult_t result) { check(result, comm); };
  const int tokens = world.tokens(rank), position = world.positionOf(rank),
            shard = world.shardOf(rank);
  const std::vector<float> weights = world.weights(rank);
  const Pass pass(comm, route, tokens, world.chosen[rank].data(),
                  c.hasWeights() ? weights.data() : nullptr, nullptr);
  const std::vector<Row>& rows = expected.at(position);
  const moecclRows_t come = pass.rows();
  requireChoices(world, rows, rank, come);
  checkThat(come.dropped == expected.dropped(rank), "another number of choices are dropped");

  moecclStream_t stream = nullptr;
  if (c.stream) ok(moecclStreamCreate(comm, &stream));
  const auto all = static_cast<size_t>(c.hidden), choices = static_cast<size_t>(c.choices);
  const std::vector<float> input = tokensOf(world, rank);
  std::vector<float> arrived(rows.size() * all, -99), results(arrived), gradients(arrived),
      output(input.size(), -99), back(output), ofRows(rows.size() * choices),
      ofChoices(weights.size(), -99);
  for (size_t row = 0; row < rows.size(); ++row) {
    for (size_t i = 0; i < all; ++i)
      results[row * all + i] = made(rows[row], position, shard, static_cast<int64_t>(i));
    // What a row has for experts of other ranks does not count.
    for (size_t i = 0; i < choices; ++i)
      ofRows[row * choices + i] = come.experts[row * choices + i] < 0
                                      ? std::numeric_limits<float>::quiet_NaN()
                                      : ofWeight(rows[row], shard, static_cast<int>(i));
  }
  const bool travel = c.weights == moecclRouteWeightsRows;
  ok(moecclPassDispatch(pass.it, input.data(), arrived.data(), stream));
  ok(moecclPassCombine(pass.it, results.data(), output.data(), stream));
  ok(moecclPassCombineBackward(pass.it, input.data(), nullptr, gradients.data(), nullptr, stream));
  ok(moecclPassDispatchBackward(pass.it, results.data(), travel ? ofRows.data() : nullptr,
                                back.data(), travel ? ofChoices.data() : nullptr, stream));
  ok(moecclStreamSynchronize(stream));
  ok(moecclStreamDestroy(stream));

  for (size_t row = 0; row < rows.size(); ++row)
    for (size_t i = 0; i < all; ++i) {
      const float its = element(rows[row].source, rows[row].token, static_cast<int64_t>(i));
      checkThat(arrived[row * all + i] == its, "another row");
      checkThat(gradients[row * all + i] == its, "another gradient of a row");
    }
  for (int token = 0; token < tokens; ++token) {
    for (int64_t i = 0; i < c.hidden; ++i) {
      float sum = 0;
      for (int p = 0; p < world.ep; ++p)
        for (int s = 0; s < c.esp && expected.comes(rank, token, p); ++s)
          sum += made({rank, token}, p, s, i);
      const auto at = static_cast<size_t>(token * c.hidden + i);
      checkThat(output[at] == sum && back[at] == sum, "another sum");
    }
    for (int choice = 0; choice < c.choices && travel; ++choice) {
      const int expert = expected.expert(rank, token, choice);
      float sum = 0;
      for (int s = 0; s < c.esp && expert >= 0; ++s)
        if (expected.comes(rank, token, world.holderOf(expert)))
          sum += ofWeight({rank, token}, s, choice);
      checkThat(ofChoices[static_cast<size_t>(token * c.choices + choice)] == sum,
                "another gradient of a weight");
    }
  }
}

TEST(RowsByToken, AgainstPlainLoops) {
  int number = 0;
  for (const std::vector<int>& nodes : {std::vector{1}, {2, 2}, {3, 1, 2}, {4, 4}})
    for (const char* algorithm : {"node", "rank", "flat", ""})
      for (const int64_t room : {0, 3}) {
        Case c;
        ++number;
        if (nodes.size() == 3) c.backend = &kProcesses;
        c.nodes = nodes;
        c.esp = c.ranks() % 2 == 0 ? 1 + number % 2 : 1;
        c.order = number % 3 == 0 ? moecclOrderEpEsp : moecclOrderEspEp;
        c.experts = c.ranks() / c.esp * 2 + 1;
        c.choices = 1 + number % 5;
        c.algorithm = algorithm;
        c.style = static_cast<Style>(number % 5);
        c.weights = number % 4 == 0 ? moecclRouteWeightsNone : moecclRouteWeightsRows;
        c.stream = number % 2 == 1;
        c.hidden = 128;
        if (number % 3 == 1) c.wire = moecclFloat8e4m3;
        c.maxRows = room;
        SCOPED_TRACE(textOf(c));
        const World world(c);
        const Expected expected(world);
        runJob(jobOf(c), [&](moecclComm_t comm, int rank) {
          const Grid grid(comm, world);
          const Route route(grid.it, c, true);
          for (int times = 0; times < 2; ++times)
            exerciseByToken(world, expected, comm, route.it, rank);
        });
      }
}

TEST(RowsByToken, LoadsCountExperts) {
  Case c;
  c.nodes = {2};
  c.experts = 4;
  c.choices = 2;
  c.weights = moecclRouteWeightsNone;
  const World world(c);
  runJob(jobOf(c), [&](moecclComm_t comm, int rank) {
    const Grid grid(comm, world);
    const Route route(grid.it, c, true);
    // Both experts of the first token are on rank 0.
    const int32_t chosen[] = {0, 1, 3, 0};
    const Pass pass(comm, route.it, rank == 0 ? 2 : 0, chosen, nullptr, nullptr);
    int64_t choices[4], rows[2];
    check(moecclRouteGetLoads(route.it, choices, rows, 0), comm);
    checkThat(choices[0] == 2 && choices[1] == 1 && choices[2] == 0 && choices[3] == 1,
              "other loads of experts");
    checkThat(rows[0] == 2 && rows[1] == 1, "other loads of ranks");
  });
}

TEST(RowsOfRoutes, WrongConfigs) {
  struct Try {
    void (*change)(moecclRouteConfig_t& config);
    std::vector<std::string> parts;
  };
  const Try tries[] = {
      {[](auto& it) { it.rowsByToken = 2; }, {"config.rowsByToken is 2", "0 to 1"}},
      {[](auto& it) { it.rowsByToken = 1; }, {"config.rowsByToken is 1", "WeightsRows or None"}},
      {[](auto& it) { it.maxRows = -1; }, {"config.maxRows is -1"}},
      {[](auto& it) { it.alignment = 5000; }, {"config.alignment is 5000", "4096"}},
      {[](auto& it) { it.wire = moecclFloat16; }, {"config.wire is", "Float8e4m3"}},
      {[](auto& it) {
         it.wire = moecclFloat8e4m3;
         it.hidden = 100;
       },
       {"config.wire is", "multiple of 128, not 100"}},
      {[](auto& it) {
         it.wire = moecclFloat8e4m3;
         it.tokenDatatype = moecclFloat8e4m3;
       },
       {"config.wire is", "tokenDatatype"}},
      {[](auto& it) {
         it.maxRows = 4;
         it.mode = "latency";
         it.maxTokens = 8;
       },
       {"config.maxRows is 4", "latency"}},
      {[](auto& it) {
         it.maxRows = 4;
         it.capacityFactor = 1;
       },
       {"has a capacity", "config.maxRows must be 0"}},
      {[](auto& it) {
         it.wire = moecclFloat8e4m3;
         it.schedule = "s1";
       },
       {"has a schedule", "config.wire must be 0"}}};
  runJob({.ranks = 2}, [&](moecclComm_t comm, int rank) {
    moecclGrid_t grid = nullptr;
    check(moecclGridCreate(comm, {1, 2, 1, moecclOrderEspEp}, &grid), comm);
    moecclRoute_t route = nullptr;
    for (const Try& it : tries) {
      moecclRouteConfig_t config = MOECCL_ROUTE_CONFIG_INITIALIZER;
      config.experts = 4;
      config.hidden = 128;
      it.change(config);
      checkError(moecclRouteCreate(grid, &config, &route), moecclInvalidArgument, comm, it.parts);
    }
    moecclRouteConfig_t config = MOECCL_ROUTE_CONFIG_INITIALIZER;
    config.experts = 4;
    config.maxRows = rank == 0 ? 100 : 101;
    checkError(moecclRouteCreate(grid, &config, &route), moecclInvalidUsage, comm,
               {"maxRows is 100 on rank 0 and 101 on rank 1"});
    check(moecclGridDestroy(grid));
  });
}

}  // namespace
}  // namespace moeccl::test
