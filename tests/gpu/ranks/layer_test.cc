// The MoE layer, forward and backward under every schedule, against plain loops.
#include <string>
#include <vector>

#include "tests/gpu/ranks/rank.h"
#include "tests/moe/on_device.h"

namespace moeccl::gpu {
namespace {

using test::Problem;

// Those that divide the ranks.
std::vector<moecclGridShape_t> shapesOf(int ranks) {
  std::vector<moecclGridShape_t> shapes{{1, ranks, 1, moecclOrderEspEp}};
  if (ranks == 1) return shapes;
  shapes.push_back({ranks, 1, ranks, moecclOrderEspEp});
  if (ranks % 2 == 0) shapes.push_back({2, ranks / 2, 2, moecclOrderEpEsp});
  return shapes;
}

Problem problemOn(const moecclGridShape_t& shape, const std::string& name) {
  Problem problem;
  problem.name = name;
  problem.grid = shape;
  problem.tokens = 61;
  problem.embedding = 32;
  problem.hidden = 16 * shape.nEsp;
  problem.experts = 6 * shape.nEp;
  problem.seed = 11;
  return problem;
}

void trainAll(Rank& rank, const std::string& name, void (*change)(Problem&)) {
  int turn = 0;
  for (const moecclGridShape_t& shape : shapesOf(rank.ranks())) {
    Problem problem = problemOn(shape, name);
    change(problem);
    const test::Task task = test::taskOf(problem);
    for (moecclSchedule_t schedule : test::schedulesOf(problem)) {
      // Each of them takes a while where a sanitizer watches.
      if (++turn % 5 != 0 && rank.quick()) continue;
      rank.step(std::string(test::nameOf(schedule)) + ", " + problem.text(), [&] {
        test::train(
            rank.device(), rank.gridInTurn(0, shape), rank.rank(), task,
            {.schedule = schedule, .inPlace = turn % 2 == 0, .onDefaultStream = turn % 5 == 0});
      });
    }
  }
}

template <moecclMoeGate_t kGate>
void withGate(Problem& problem) {
  problem.gate = kGate;
  problem.choices = kGate == moecclGateSwitch ? 1 : 2;
  problem.capacityFactor = kGate % 2 == 0 ? 0.7 : 2;
}

RANKS_TEST(layersBySoftmax) { trainAll(rank, "softmax", withGate<moecclGateSoftmax>); }
RANKS_TEST(layersByNoisyTopK) { trainAll(rank, "noisy top-k", withGate<moecclGateNoisyTopK>); }
RANKS_TEST(layersByGShard) { trainAll(rank, "GShard", withGate<moecclGateGShard>); }
RANKS_TEST(layersBySwitch) { trainAll(rank, "Switch", withGate<moecclGateSwitch>); }
RANKS_TEST(layersByExpertChoice) {
  trainAll(rank, "expert choice", withGate<moecclGateExpertChoice>);
}
RANKS_TEST(layersBySigmoid) { trainAll(rank, "sigmoid", withGate<moecclGateSigmoid>); }

RANKS_TEST(layersInChunks) {
  trainAll(rank, "chunks", [](Problem& problem) {
    problem.capacityGroups = 4 * problem.grid.nMp;
    problem.chunks = 2;
    problem.residual = 20;
  });
}
RANKS_TEST(layersWithAResidualBranch) {
  trainAll(rank, "residual branch", [](Problem& problem) { problem.residual = 20; });
}
RANKS_TEST(layersWithoutCapacity) {
  trainAll(rank, "dropless", [](Problem& problem) { problem.dropless = true; });
}
RANKS_TEST(layersWithoutCapacityInChunks) {
  trainAll(rank, "dropless, in chunks", [](Problem& problem) {
    problem.dropless = true;
    problem.chunks = 3;
  });
}
template <moecclDataType_t kType>
void inType(Problem& problem) {
  problem.datatype = kType;
  problem.dropless = problem.grid.nEsp == 1;
  problem.residual = 20;
}
RANKS_TEST(layersInFloat16) { trainAll(rank, "float16", inType<moecclFloat16>); }
RANKS_TEST(layersInBfloat16) { trainAll(rank, "bfloat16", inType<moecclBfloat16>); }
RANKS_TEST(layersWithoutTokens) {
  trainAll(rank, "no tokens", [](Problem& problem) { problem.tokens = 0; });
}
// Rows that vectors do not divide.
RANKS_TEST(layersOfOddSizes) {
  trainAll(rank, "odd sizes", [](Problem& problem) {
    problem.embedding = 33;
    problem.dropless = true;
    problem.residual = 7;
  });
}

}  // namespace
}  // namespace moeccl::gpu
