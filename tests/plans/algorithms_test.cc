// Every registered algorithm keeps its collective's promise, on every kind of topology.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "tests/plans/algorithms_fixture.h"

namespace moeccl::testing {
namespace {

// Jobs of up to 8 ranks are small enough for sanitizers, which see all of an algorithm in them.
TEST_P(Algorithms, InOneNode) {
  for (int ranks = 1; ranks <= 8; ++ranks) checkVariants(Topology::even(1, ranks));
}
TEST_P(Algorithms, WideInOneNode) {
  for (int ranks = 9; ranks <= 33; ++ranks) checkVariants(Topology::even(1, ranks));
}

TEST_P(Algorithms, OnOneRankNodes) {
  for (int ranks = 1; ranks <= 8; ++ranks) checkVariants(Topology::even(ranks, 1));
}
TEST_P(Algorithms, WideOnOneRankNodes) {
  for (int ranks = 9; ranks <= 33; ++ranks) checkVariants(Topology::even(ranks, 1));
}

TEST_P(Algorithms, OnEveryCutOfUpTo6Ranks) {
  for (int ranks = 1; ranks <= 6; ++ranks)
    for (const Topology& topology : compositions(ranks)) checkVariants(topology, {3});
}
TEST_P(Algorithms, SlowOnEveryCutOf7To12Ranks) {
  for (int ranks = 7; ranks <= 12; ++ranks)
    for (const Topology& topology : compositions(ranks)) checkVariants(topology, {3});
}

TEST_P(Algorithms, OnRoundRobinPlacements) {
  for (int ranks = 1; ranks <= 8; ++ranks)
    for (int nodes = 1; nodes <= ranks; ++nodes) checkVariants(roundRobin(ranks, nodes));
}
TEST_P(Algorithms, WideOnRoundRobinPlacements) {
  for (int ranks = 9; ranks <= 24; ++ranks)
    for (int nodes = 1; nodes <= ranks; ++nodes) checkVariants(roundRobin(ranks, nodes));
}

TEST_P(Algorithms, OnRandomUnevenNodes) { checkRandom(16, 48); }
TEST_P(Algorithms, WideOnRandomUnevenNodes) { checkRandom(64, 96); }
TEST_P(Algorithms, SlowOnRandomUnevenNodes) { checkRandom(64, 256); }

// Groups of 1, 2, 3, 4 and 8 ranks in all combinations and both orders; on one node, on nodes that
// hold whole groups of either kind, on nodes that cut through all groups, and on uneven ones.
class AlgorithmsOfGrids : public Algorithms {
 protected:
  void inEveryPlacement(int fewest, int most);
};

TEST_P(AlgorithmsOfGrids, InEveryPlacement) { inEveryPlacement(1, 8); }
TEST_P(AlgorithmsOfGrids, WideInEveryPlacement) { inEveryPlacement(9, 64); }

void AlgorithmsOfGrids::inEveryPlacement(int fewest, int most) {
  std::mt19937 random(7);
  for (int mp : {1, 2, 3, 4, 8})
    for (int ep : {1, 2, 3, 4, 8})
      for (int esp : {1, 2, 3, 4, 8})
        for (bool espConsecutive : {true, false}) {
          const int ranks = ep * esp;
          if (ranks % mp != 0 || ranks < fewest || ranks > most) continue;
          Parameters parameters;
          parameters.grid = {mp, ep, esp, espConsecutive};
          parameters.experts = 1 + ranks % 3;
          for (const Topology& topology :
               {Topology::even(1, ranks), Topology::even(ep, esp), Topology::even(esp, ep),
                roundRobin(ranks, std::min(ranks, 3)), roundRobin(ranks, ranks),
                compositions(std::min(ranks, 10))[random() % (1u << (std::min(ranks, 10) - 1))]}) {
            if (topology.ranks() == ranks) check(topology, parameters);
          }
          std::vector<int> node(static_cast<size_t>(ranks));
          for (int rank = 1; rank < ranks; ++rank)
            node[rank] = node[rank - 1] + (random() % 3 == 0 ? 1 : 0);
          checkVariants(Topology(node), parameters, {1, 3});
        }
}

INSTANTIATE_TEST_SUITE_P(Registry, Algorithms, ::testing::ValuesIn(algorithms()),
                         Algorithms::nameOfTest);

std::vector<Algorithm> algorithmsOfGrids() {
  std::vector<Algorithm> some;
  std::ranges::copy_if(algorithms(), std::back_inserter(some), needsGrid, &Algorithm::collective);
  return some;
}

INSTANTIATE_TEST_SUITE_P(Registry, AlgorithmsOfGrids, ::testing::ValuesIn(algorithmsOfGrids()),
                         Algorithms::nameOfTest);

}  // namespace
}  // namespace moeccl::testing
