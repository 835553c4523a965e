// The layer over UCX: ranks as threads, and as processes.
#include <gtest/gtest.h>

#include "tests/moe/problem.h"

namespace moeccl::test {
namespace {

TEST(Ucx, AllSchedules) {
  for (const auto& [nMp, order] : {std::pair{2, moecclOrderEspEp}, {6, moecclOrderEpEsp}}) {
    Problem problem;
    problem.name = "over UCX";
    problem.grid = {nMp, 2, 3, order};
    problem.experts = 6;
    problem.tokens = 301;
    problem.embedding = 64;
    problem.hidden = 96;
    problem.data = Tokens::repeated;
    problem.capacityGroups = 3 * nMp;
    problem.chunks = 3;
    const Solved solved = solve(problem);
    for (moecclSchedule_t schedule : schedulesOf(problem))
      for (bool processes : {false, true})
        runLayer(problem, solved, {.schedule = schedule, .ucx = true, .processes = processes});
  }
}

}  // namespace
}  // namespace moeccl::test
