// Problems of layers with a residual branch, and of dropless ones.
#include <array>

#include "tests/moe/problem.h"

namespace moeccl::test {

std::vector<Problem> residualProblems() {
  std::vector<Problem> problems;
  const auto add = [&](std::vector<Problem> all, std::size_t each) {
    for (std::size_t i = 0; i < all.size(); i += each) {
      Problem& problem = problems.emplace_back(all[i]);
      problem.name += ", residual branch";
      problem.residual = std::array{5, 1, 16}[problems.size() % 3];
    }
  };
  add(gridProblems(), 4);
  add(chunkedProblems(), 3);
  add(hardProblems(), 2);
  add(gateProblems(), 5);
  return problems;
}

std::vector<Problem> droplessProblems() {
  std::vector<Problem> problems;
  const auto add = [&](std::vector<Problem> all, std::size_t each) {
    for (std::size_t i = 0; i < all.size(); i += each) {
      if (all[i].gate == moecclGateExpertChoice) continue;
      Problem& problem = problems.emplace_back(all[i]);
      problem.name += ", dropless";
      problem.dropless = true;
      problem.residual = problems.size() % 4 == 0 ? 5 : 0;
    }
  };
  add(gridProblems(), 1);
  add(hardProblems(), 1);
  add(gateProblems(), 1);
  return problems;
}

}  // namespace moeccl::test
