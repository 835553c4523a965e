// Every registered algorithm keeps its collective's promise, on every kind of topology.
#include <gtest/gtest.h>

#include "tests/plans/algorithms_fixture.h"

namespace moeccl::testing {
namespace {

TEST_P(Algorithms, InOneNode) {
  for (int ranks = 1; ranks <= 33; ++ranks) checkWindows(Topology::even(1, ranks));
}

TEST_P(Algorithms, OnOneRankNodes) {
  for (int ranks = 1; ranks <= 33; ++ranks) checkWindows(Topology::even(ranks, 1));
}

TEST_P(Algorithms, OnEveryCutOfUpTo12Ranks) {
  for (int ranks = 1; ranks <= 12; ++ranks)
    for (const Topology& topology : compositions(ranks)) checkWindows(topology, {3});
}

TEST_P(Algorithms, OnRoundRobinPlacements) {
  for (int ranks = 1; ranks <= 24; ++ranks)
    for (int nodes = 1; nodes <= ranks; ++nodes) checkWindows(roundRobin(ranks, nodes));
}

TEST_P(Algorithms, OnRandomUnevenNodes) {
  std::mt19937 random(20240229);
  for (int i = 0; i < 64; ++i) check(randomTopology(random, 256), {.window = 1 + i % 20});
}

INSTANTIATE_TEST_SUITE_P(Registry, Algorithms, ::testing::ValuesIn(algorithms()),
                         Algorithms::nameOfTest);

}  // namespace
}  // namespace moeccl::testing
