// The plans of token routing, proved for random routings on random clusters, and what they cost.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/plans/route_job.h"
#include "tests/plans/support.h"

namespace moeccl::testing {
namespace {

using routes::Here;
using routes::RouteAlgorithm;
using routes::RowList;

std::string textOf(const Routing& r, std::string_view algorithm) {
  return std::string(algorithm) + ", nodes " + nameOf(r.topology) + ", ep " +
         std::to_string(r.experts.grid.ep) + ", esp " + std::to_string(r.experts.grid.esp) +
         (r.experts.grid.espConsecutive ? "" : " (ep consecutive)") + ", experts " +
         std::to_string(r.experts.count) + ", k " + std::to_string(r.choices) + ", chunks " +
         std::to_string(r.chunks);
}

void prove(const Routing& r, const RouteAlgorithm& algorithm) {
  SCOPED_TRACE(textOf(r, algorithm.name));
  const Job job(r, algorithm.way());
  const Truth truth(r);
  const Promises promises(r, truth);
  EXPECT_EQ(text(verify(promises.dispatch, job.plans(routes::dispatchPlan))), "");
  EXPECT_EQ(text(verify(promises.combine, job.plans([](const routes::Knowledge& known) {
              return routes::combinePlan(known).plan;
            }))),
            "");
  EXPECT_EQ(text(verify(promises.back, job.plans(routes::returnPlan))), "");
  for (int rank = 0; rank < r.topology.ranks(); ++rank) {
    const Here& here = *job.heres[rank];
    ASSERT_EQ(here.rows(), static_cast<std::int64_t>(truth.tokens[rank].size()));
    const int position = r.experts.grid.positionOf(rank);
    ASSERT_EQ(here.expertBegins.size(),
              static_cast<size_t>(r.experts.begin(position + 1) - r.experts.begin(position)) + 1);
    for (size_t place = 0; r.weighted && place < here.weights.size(); ++place) {
      const Payload choice = truth.choices[rank][place][0];
      ASSERT_EQ(here.weights[place], weightOf(choice.rank, choice.block));
    }
  }
}

Routing randomRouting(std::mt19937& random, int mostRanks, int mostTokens) {
  const auto below = [&](int bound) {
    return static_cast<int>(random() % static_cast<unsigned>(bound));
  };
  Routing r{.topology = randomTopology(random, mostRanks), .experts = {}, .chosen = {}};
  const std::vector<Grid> grids = gridsOf(r.topology.ranks(), 8);
  r.experts.grid = grids[random() % grids.size()];
  r.experts.count = 1 + below(3 * r.experts.grid.ep);
  r.choices = 1 + below(16);
  r.chunks = 1 + below(4);
  r.weighted = below(2) == 0;
  const int hot = below(r.experts.count), style = below(4);
  for (int rank = 0; rank < r.topology.ranks(); ++rank) {
    std::vector<std::int32_t> chosen;
    const int tokens = below(3) == 0 ? 0 : below(mostTokens);
    for (int i = 0; i < tokens * r.choices; ++i)
      chosen.push_back(style == 0 ? hot : below(r.experts.count + 1) - 1);
    r.chosen.push_back(std::move(chosen));
  }
  return r;
}

TEST(Routes, EveryAlgorithmOnRandomRoutings) {
  std::mt19937 random(2711);
  for (int i = 0; i < 400 && !::testing::Test::HasFailure(); ++i) {
    const Routing r = randomRouting(random, 14, 12);
    for (const RouteAlgorithm& algorithm : routes::routeAlgorithms()) prove(r, algorithm);
  }
}

// `tokens` per rank, each with `choices` different experts.
Routing evenRouting(int nodes, int ranksPerNode, int experts, int choices, int tokens) {
  Routing r{.topology = Topology::even(nodes, ranksPerNode),
            .experts = {{.ep = nodes * ranksPerNode}, experts},
            .choices = choices,
            .chosen = {}};
  std::mt19937 random(5);
  for (int rank = 0; rank < r.topology.ranks(); ++rank) {
    std::vector<std::int32_t> chosen, all;
    for (int expert = 0; expert < experts; ++expert) all.push_back(expert);
    for (int token = 0; token < tokens; ++token) {
      std::ranges::shuffle(all, random);
      chosen.insert(chosen.end(), all.begin(), all.begin() + choices);
    }
    r.chosen.push_back(std::move(chosen));
  }
  return r;
}

// Rows that leave a node for each token.
double rowsAcross(const Routing& r, const std::vector<Plan>& plans) {
  std::int64_t rows = 0, tokens = 0;
  for (int rank = 0; rank < r.topology.ranks(); ++rank) {
    tokens += r.tokens(rank);
    for (const Op& op : plans[rank].ops)
      if (op.kind == OpKind::send && r.topology.nodeOf(op.peer) != r.topology.nodeOf(rank))
        rows += blockCount(plans[rank].src(op));
  }
  return static_cast<double>(rows) / static_cast<double>(tokens);
}

TEST(Routes, RowsThatLeaveANode) {
  struct Case {
    int nodes;
    double node, rank, flat;
  };
  for (const Case& c : {Case{2, 1.00, 2.7, 4.0}, Case{4, 2.74, 5.0, 6.0}}) {
    const Routing r = evenRouting(c.nodes, 4, 64, 8, 256);
    for (const auto& [name, rows, back] :
         {std::tuple{"node", c.node, c.node}, std::tuple{"rank", c.rank, c.flat},
          std::tuple{"flat", c.flat, c.flat}}) {
      const Job job(r, routes::findRouteAlgorithm(name)->way());
      EXPECT_NEAR(rowsAcross(r, job.plans(routes::dispatchPlan)), rows, 0.02 * rows) << name;
      EXPECT_NEAR(rowsAcross(r, job.plans([](const routes::Knowledge& known) {
                    return routes::combinePlan(known).plan;
                  })),
                  back, 0.02 * back)
          << name;
    }
  }
}

// With what tells ranks of rows, of the bytes of bfloat16 rows with 2048 elements.
TEST(Routes, TellingOfRowsTakesLittle) {
  for (int nodes : {2, 4}) {
    Routing r = evenRouting(nodes, 4, 64, 8, 512);
    r.chunks = 8;
    r.weighted = true;
    const Job job(r, routes::findRouteAlgorithm("node")->way());
    double told = 0;
    for (int node = 1; node < nodes; ++node) {
      const RowList& list = job.homes[0]->of(node).rows.list;
      told += static_cast<double>(routes::packedBytes(r.chunks, 1, list.entries(), true)) /
              (4096.0 * job.homes[0]->of(node).rows.rows());
    }
    EXPECT_LT(told / (nodes - 1), 0.01) << nodes;
  }
}

TEST(Routes, ListsThatAreNoneAreRefused) {
  const Routing r = evenRouting(2, 2, 8, 3, 5);
  const Job job(r, routes::findRouteAlgorithm("node")->way());
  const RowList& list = job.homes[0]->of(1).rows.list;
  std::vector<std::byte> bytes(routes::packedBytes(1, 1, list.entries(), false));
  routes::pack(list, false, bytes.data());
  RowList got;
  const auto read = [&] { routes::unpack(bytes, 1, 1, list.entries(), false, 8, &got); };
  EXPECT_NO_THROW(read());
  bytes[0] ^= std::byte{1};
  EXPECT_THROW(read(), std::invalid_argument);
  bytes[0] ^= std::byte{1};
  bytes[4] |= std::byte{9};
  EXPECT_THROW(read(), std::invalid_argument);
  bytes.pop_back();
  EXPECT_THROW(read(), std::invalid_argument);
}

// What latency mode exchanges is an all-to-all, whoever are the relays.
TEST(Routes, LatencyPlansAreAllToAlls) {
  std::mt19937 random(99);
  for (int i = 0; i < 200 && !::testing::Test::HasFailure(); ++i) {
    const Topology topology = randomTopology(random, 14);
    const Promise all = everyPair(topology.ranks());
    for (const RouteAlgorithm& algorithm : routes::routeAlgorithms()) {
      SCOPED_TRACE(std::string(algorithm.name) + ", nodes " + nameOf(topology));
      std::vector<Plan> dispatch, combine;
      for (int rank = 0; rank < topology.ranks(); ++rank) {
        dispatch.push_back(routes::latencyDispatchPlan(topology, algorithm.way(), rank));
        combine.push_back(routes::latencyCombinePlan(topology, algorithm.way(), rank));
        const auto across = [&](const Plan& plan) {
          return std::ranges::count_if(plan.ops, [&](const Op& op) {
            return op.kind == OpKind::send && topology.nodeOf(op.peer) != topology.nodeOf(rank);
          });
        };
        if (algorithm.name == "node") {
          EXPECT_EQ(across(dispatch.back()), topology.nodes() - 1);
        }
      }
      EXPECT_EQ(text(verify(all, dispatch)), "");
      EXPECT_EQ(text(verify(all, combine)), "");
    }
  }
}

// Plans that are almost right are found out.
TEST(Routes, WrongSumsAreNoticed) {
  const Routing r = evenRouting(2, 2, 8, 4, 6);
  const Job job(r, routes::findRouteAlgorithm("node")->way());
  const Truth truth(r);
  const Promises promises(r, truth);
  std::vector<Plan> plans =
      job.plans([](const routes::Knowledge& known) { return routes::combinePlan(known).plan; });
  int sums = 0;
  for (size_t op = 0; op < plans[0].ops.size(); ++op) {
    const Op& sum = plans[0].ops[op];
    if (sum.kind != OpKind::reduce || sum.src.count < 2) continue;
    ++sums;
    std::vector<Plan> wrong = plans;
    std::swap(wrong[0].blockPool[static_cast<size_t>(sum.src.begin)],
              wrong[0].blockPool[static_cast<size_t>(sum.src.begin + sum.src.count - 1)]);
    EXPECT_NE(text(verify(promises.combine, wrong)), "")
        << describe(plans[0], static_cast<int>(op));
  }
  EXPECT_GT(sums, 2);
  Promise byTwo = promises.combine;  // other groups than the plans add up first
  byTwo.group = [](Payload payload) { return payload.rank; };
  EXPECT_NE(text(verify(byTwo, plans)), "");
}

}  // namespace
}  // namespace moeccl::testing
