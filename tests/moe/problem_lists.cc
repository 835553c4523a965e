// The layers that tests run, and how hard they are.
#include <array>
#include <random>
#include <stdexcept>

#include "tests/moe/problem.h"
#include "tests/sanitized.h"

namespace moeccl::test {

std::vector<Problem> gridProblems() {
  std::mt19937 random(7);
  const auto oneOf = [&](auto... values) {
    const std::array all{values...};
    return all[random() % all.size()];
  };
  std::vector<Problem> problems;
  for (int nEp = 1; nEp <= 4; ++nEp)
    for (int nEsp = 1; nEsp <= 4; ++nEsp)
      for (int nMp : {1, 2, 3, 4, 6, 8, 9, 12, 16})
        for (moecclGridOrder_t order : {moecclOrderEspEp, moecclOrderEpEsp}) {
          if (nEp * nEsp % nMp != 0 || (nMp > 4 && nMp != nEp * nEsp)) continue;
          Problem& problem = problems.emplace_back();
          problem.name = "grid";
          problem.grid = {nMp, nEp, nEsp, order};
          problem.seed = random();
          problem.tokens = oneOf(5, 12, 17, 24, 31);
          problem.choices = oneOf(1, 2, 3);
          problem.capacityFactor = oneOf(0.4, 1.0, 1.7);
          problem.capacityGroups = oneOf(0, 0, nMp, 2 * nMp, nMp + 1);
          problem.activation = oneOf(moecclMoeGelu, moecclMoeRelu);
          problem.data = oneOf(Tokens::random, Tokens::repeated, Tokens::tied);
          problem.biases = oneOf(true, true, false);
        }
  // Larger groups than those.
  for (moecclGridShape_t grid :
       {moecclGridShape_t{4, 16, 1, moecclOrderEspEp}, moecclGridShape_t{2, 8, 2, moecclOrderEpEsp},
        moecclGridShape_t{4, 2, 8, moecclOrderEspEp},
        moecclGridShape_t{16, 1, 16, moecclOrderEspEp},
        moecclGridShape_t{8, 8, 2, moecclOrderEspEp}, moecclGridShape_t{7, 7, 2, moecclOrderEspEp},
        moecclGridShape_t{1, 11, 1, moecclOrderEspEp}}) {
    Problem& problem = problems.emplace_back();
    problem.name = "larger groups";
    problem.grid = grid;
    problem.seed = static_cast<unsigned>(problems.size());
    problem.tokens = 31;
    problem.experts = grid.nEp;
    problem.hidden = 16;
    problem.choices = 1;
    problem.capacityFactor = 0.4;
  }
  return problems;
}

std::vector<Problem> gateProblems() {
  constexpr moecclGridOrder_t kEsp = moecclOrderEspEp, kEp = moecclOrderEpEsp;
  const moecclGridShape_t grids[] = {{1, 1, 1, kEsp}, {2, 2, 2, kEp},  {4, 2, 2, kEsp},
                                     {3, 3, 2, kEsp}, {2, 1, 4, kEsp}, {6, 2, 3, kEp},
                                     {4, 4, 3, kEp},  {4, 4, 4, kEsp}, {16, 4, 4, kEsp}};
  std::vector<Problem> problems;
  unsigned turn = 0;
  for (int gate = 0; gate < moecclNumGates; ++gate)
    for (const moecclGridShape_t& grid : grids) {
      Problem& problem = problems.emplace_back();
      problem.name = "gates";
      problem.grid = grid;
      problem.gate = static_cast<moecclMoeGate_t>(gate);
      problem.seed = 100 + turn;
      problem.tokens = std::array{17, 31, 5, 24, 1}[turn % 5];
      problem.choices = std::array{1, 2, 3, 1}[turn % 4];
      if (gate == moecclGateGShard) problem.choices = 2;
      if (gate == moecclGateSwitch) problem.choices = 1;
      // There are nine grids: each has another one with each gate.
      problem.capacityFactor = std::array{0.3, 1.0, 20.0}[(turn + turn / std::size(grids)) % 3];
      problem.capacityGroups = turn % 2 == 0 ? 0 : 2 * grid.nMp;
      problem.data = std::array{Tokens::random, Tokens::repeated, Tokens::tied}[(turn / 2) % 3];
      problem.hotGate = turn % 7 == 3 ? 3 : 0;
      problem.training = turn % 4 < 2;
      ++turn;
    }
  // On all ranks that a job here has, under every schedule, most choices dropped.
  for (int gate = 0; gate < moecclNumGates; ++gate) {
    Problem& problem = problems.emplace_back();
    problem.name = "gates that drop";
    problem.grid = {16, 4, 4, kEsp};
    problem.gate = static_cast<moecclMoeGate_t>(gate);
    problem.seed = 200 + static_cast<unsigned>(gate);
    problem.tokens = 61;
    problem.choices = gate == moecclGateSwitch ? 1 : 2;
    problem.capacityFactor = 0.3;
    problem.hotGate = 3;
    problem.training = true;
  }
  return problems;
}

std::vector<Problem> inBothDatatypes(std::vector<Problem> problems) {
  if (kSanitized) {
    for (std::size_t i = 1; i < problems.size(); i += 2) problems[i].datatype = moecclFloat64;
    return problems;
  }
  const std::size_t count = problems.size();
  for (std::size_t i = 0; i < count; ++i) {
    problems.push_back(problems[i]);
    problems.back().datatype = moecclFloat64;
  }
  return problems;
}

Problem six(const std::string& name) {
  Problem problem;
  problem.name = name;
  problem.grid = {2, 2, 3, moecclOrderEspEp};
  problem.experts = 6;
  problem.tokens = 20;
  return problem;
}

std::vector<Problem> hardProblems() {
  std::vector<Problem> problems;
  const auto add = [&](const std::string& name, const auto& change) {
    Problem problem = six(name);
    change(problem);
    problems.push_back(problem);
    problem.grid.nMp = problem.ranks();
    problems.push_back(problem);
  };
  add("one place per group", [](Problem& p) { p.capacityFactor = 1e-6; });
  add("places for all", [](Problem& p) { p.capacityFactor = 1e300; });
  add("hot expert", [](Problem& p) { p.hotGate = 3; });
  add("experts without tokens", [](Problem& p) {
    p.hotGate = 3;
    p.choices = 1;
    p.capacityFactor = 6;
  });
  add("every expert chosen", [](Problem& p) { p.choices = p.experts; });
  add("groups of one token, and empty ones", [](Problem& p) {
    p.tokens = 7;
    p.capacityGroups = 16;
  });
  add("one group that parts cut", [](Problem& p) {
    p.capacityGroups = 1;
    p.capacityFactor = 0.6;
  });
  add("more rows than an expert takes at once", [](Problem& p) {
    p.tokens = 601;
    p.experts = 2;
  });
  for (std::int64_t tokens : {0, 1})
    for (moecclGridShape_t grid : {moecclGridShape_t{1, 1, 1, moecclOrderEspEp},
                                   moecclGridShape_t{2, 2, 2, moecclOrderEspEp},
                                   moecclGridShape_t{3, 3, 1, moecclOrderEpEsp},
                                   moecclGridShape_t{4, 2, 2, moecclOrderEspEp}}) {
      Problem& problem = problems.emplace_back();
      problem.name = "few tokens";
      problem.tokens = tokens;
      problem.grid = grid;
    }
  return problems;
}

std::vector<Problem> chunkedProblems() {
  std::vector<Problem> problems;
  for (moecclGridShape_t grid :
       {moecclGridShape_t{1, 1, 1, moecclOrderEspEp}, moecclGridShape_t{1, 2, 2, moecclOrderEspEp},
        moecclGridShape_t{2, 2, 3, moecclOrderEpEsp}, moecclGridShape_t{4, 2, 2, moecclOrderEspEp}})
    for (std::int64_t chunks : {2, 5})
      for (std::int64_t groupsPerChunk : {1, 2})
        for (std::int64_t tokens : {0, 7, 101}) {
          Problem& problem = problems.emplace_back();
          problem.name = "chunks";
          problem.grid = grid;
          problem.tokens = tokens;
          problem.chunks = chunks;
          problem.capacityGroups = grid.nMp * chunks * groupsPerChunk;
          problem.capacityFactor = 0.8;
          problem.seed = static_cast<unsigned>(problems.size());
        }
  return problems;
}

std::vector<Problem> chunkedGateProblems() {
  std::vector<Problem> problems;
  for (int gate = 0; gate < moecclNumGates; ++gate)
    for (moecclGridShape_t grid : {moecclGridShape_t{2, 2, 3, moecclOrderEpEsp},
                                   moecclGridShape_t{4, 2, 2, moecclOrderEspEp}})
      for (std::int64_t tokens : {7, 101}) {
        Problem& problem = problems.emplace_back();
        problem.name = "gates in chunks";
        problem.grid = grid;
        problem.gate = static_cast<moecclMoeGate_t>(gate);
        problem.training = true;
        problem.tokens = tokens;
        problem.choices = gate == moecclGateSwitch ? 1 : 2;
        problem.chunks = 3;
        problem.capacityGroups = grid.nMp * 6;
        problem.capacityFactor = 0.8;
        problem.seed = static_cast<unsigned>(problems.size());
      }
  return problems;
}

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

Problem hardProblem(const std::string& name) {
  for (const Problem& problem : hardProblems())
    if (problem.name == name) return problem;
  throw std::logic_error("no hard problem is called " + name);
}

}  // namespace moeccl::test
