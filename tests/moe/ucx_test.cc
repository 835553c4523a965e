// The layer over UCX, forward and backward: ranks as threads, and as processes.
#include <gtest/gtest.h>

#include "tests/moe/learn.h"

namespace moeccl::test {
namespace {

void expectOverUcx(const Problem& problem) {
  const Solved solved = solve(problem);
  const Task task = taskOf(problem);
  for (moecclSchedule_t schedule : schedulesOf(problem))
    for (bool processes : {false, true}) {
      runLayer(problem, solved, {.schedule = schedule, .ucx = true, .processes = processes});
      learn(task, {.schedule = schedule, .passes = 2, .ucx = true, .processes = processes});
    }
}

// MP groups that cross ESP groups, and of all ranks.
Problem sixOverUcx(int nMp) {
  Problem problem;
  problem.name = "over UCX";
  problem.grid = {nMp, 2, 3, nMp == 2 ? moecclOrderEspEp : moecclOrderEpEsp};
  problem.experts = 6;
  problem.tokens = 301;
  problem.embedding = 64;
  problem.hidden = 96;
  problem.data = Tokens::repeated;
  return problem;
}

TEST(Ucx, AllSchedules) {
  for (int nMp : {2, 6}) {
    Problem problem = sixOverUcx(nMp);
    problem.capacityGroups = 3 * nMp;
    problem.chunks = 3;
    expectOverUcx(problem);
  }
}

TEST(Ucx, WideAllGates) {
  for (int gate = 0; gate < moecclNumGates; ++gate) {
    Problem problem = sixOverUcx(gate % 2 == 0 ? 2 : 6);
    problem.gate = static_cast<moecclMoeGate_t>(gate);
    problem.choices = gate == moecclGateSwitch ? 1 : 2;
    problem.capacityFactor = 0.6;
    problem.residual = gate % 3 == 0 ? 16 : 0;
    problem.tokens = 41;
    problem.training = true;
    expectOverUcx(problem);
  }
}

TEST(Ucx, Dropless) {
  for (int nMp : {2, 6}) {
    Problem problem = sixOverUcx(nMp);
    problem.dropless = true;
    problem.residual = nMp == 2 ? 0 : 16;
    expectOverUcx(problem);
    problem.chunks = 3;
    expectOverUcx(problem);
  }
}

TEST(Ucx, Routed) {
  for (int nMp : {2, 6}) {
    Problem problem = sixOverUcx(nMp);
    problem.dropless = true;
    problem.tokenRouting = 1;
    problem.nodes = {2, 4};
    problem.choices = 3;
    problem.residual = nMp == 2 ? 0 : 16;
    expectOverUcx(problem);
  }
}

// One rank, prime numbers of them, no tokens.
TEST(Ucx, WideOtherGrids) {
  for (const auto& [grid, tokens] : {std::pair{moecclGridShape_t{1, 1, 1, moecclOrderEspEp}, 31},
                                     {moecclGridShape_t{5, 5, 1, moecclOrderEspEp}, 31},
                                     {moecclGridShape_t{1, 1, 7, moecclOrderEpEsp}, 31},
                                     {moecclGridShape_t{2, 2, 2, moecclOrderEspEp}, 0},
                                     {moecclGridShape_t{4, 2, 4, moecclOrderEpEsp}, 61}}) {
    Problem problem;
    problem.name = "over UCX, other grids";
    problem.grid = grid;
    problem.tokens = tokens;
    problem.experts = grid.nEp * 2;
    problem.hidden = 28;
    expectOverUcx(problem);
  }
}

}  // namespace
}  // namespace moeccl::test
