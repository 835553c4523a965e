// The layers that tests run, and how hard they are.
#include <algorithm>
#include <cctype>
#include <iterator>
#include <ostream>
#include <stdexcept>

#include "tests/moe/problem.h"
#include "tests/pairwise.h"

namespace moeccl::test {
namespace {

constexpr moecclGridOrder_t kEsp = moecclOrderEspEp, kEp = moecclOrderEpEsp;

struct NamedGrid {
  std::string name;
  moecclGridShape_t shape;
};

std::vector<NamedGrid> fewGrids() {
  return {{"one rank", {1, 1, 1, kEsp}},       {"EP alone", {1, 3, 1, kEsp}},
          {"ESP alone", {1, 1, 3, kEp}},       {"no MP", {1, 2, 2, kEsp}},
          {"MP is ESP", {2, 2, 2, kEsp}},      {"MP is EP", {2, 2, 2, kEp}},
          {"MP within ESP", {2, 2, 4, kEsp}},  {"MP of several ESP", {4, 4, 2, kEsp}},
          {"MP crosses ESP", {2, 2, 3, kEsp}}, {"MP crosses EP", {3, 4, 3, kEp}},
          {"MP of all", {6, 2, 3, kEp}},       {"a prime number", {5, 5, 1, kEsp}},
          {"many", {16, 4, 4, kEsp}}};
}

// EP and ESP groups of 1 to 4 ranks and MP groups of 1 to 4 or all, in both orders, and some larger
// ones.
std::vector<NamedGrid> allGrids() {
  std::vector<NamedGrid> grids;
  for (int nEp = 1; nEp <= 4; ++nEp)
    for (int nEsp = 1; nEsp <= 4; ++nEsp)
      for (int nMp : {1, 2, 3, 4, 6, 8, 9, 12, 16})
        for (moecclGridOrder_t order : {kEsp, kEp})
          if (nEp * nEsp % nMp == 0 && (nMp <= 4 || nMp == nEp * nEsp))
            grids.push_back({"all grids", {nMp, nEp, nEsp, order}});
  for (moecclGridShape_t shape : {moecclGridShape_t{4, 16, 1, kEsp},
                                  {2, 8, 2, kEp},
                                  {4, 2, 8, kEsp},
                                  {16, 1, 16, kEsp},
                                  {8, 8, 2, kEsp},
                                  {7, 7, 2, kEsp},
                                  {1, 11, 1, kEsp}})
    grids.push_back({"larger groups", shape});
  return grids;
}

// What the columns of the table of layers may be.
enum Column : std::size_t {
  theGrid,
  theGate,
  theTokens,
  theChoices,
  theCapacity,
  theGroups,
  theResidual,
  theData,
  theActivation,
  theType,
  theBiases,
  theLoad,
  theWeights
};
constexpr std::int64_t kTokens[] = {1, 12, 17, 31};
constexpr std::int64_t kChoices[] = {1, 2, 3};
constexpr double kCapacities[] = {0.3, 1.0, 20, 0};  // 0: dropless
constexpr std::size_t kDropless = 3;
// Capacity groups per rank of an MP group, 0 for the default, and chunks; one more lets groups
// cross parts.
struct Groups {
  std::int64_t perRank, more, chunks;
};
constexpr Groups kGroups[] = {{0, 0, 0}, {1, 0, 0}, {2, 0, 0}, {1, 1, 0}, {4, 0, 2}};
constexpr std::int64_t kResiduals[] = {0, 5, 16};
constexpr Tokens kData[] = {Tokens::random, Tokens::repeated, Tokens::tied};
constexpr moecclMoeActivation_t kActivations[] = {moecclMoeGelu, moecclMoeRelu, moecclMoeSwiglu};
constexpr moecclDataType_t kTypes[] = {moecclFloat32, moecclFloat64};
constexpr double kHotGates[] = {0, 3};

std::int64_t roundedUp(std::int64_t number, std::int64_t divisor) {
  return (number + divisor - 1) / divisor * divisor;
}

Problem problemOf(const NamedGrid& grid, const Row& row) {
  Problem problem;
  problem.name = grid.name;
  problem.grid = grid.shape;
  problem.experts = roundedUp(12, grid.shape.nEp);
  problem.hidden = roundedUp(12, grid.shape.nEsp);
  problem.gate = static_cast<moecclMoeGate_t>(row[theGate]);
  problem.tokens = kTokens[row[theTokens]];
  problem.choices = kChoices[row[theChoices]];
  problem.dropless = row[theCapacity] == kDropless;
  problem.capacityFactor = problem.dropless ? 1 : kCapacities[row[theCapacity]];
  if (!problem.dropless) {
    const Groups& groups = kGroups[row[theGroups]];
    problem.capacityGroups = groups.perRank * grid.shape.nMp + groups.more;
    problem.chunks = groups.chunks;
  }
  problem.residual = kResiduals[row[theResidual]];
  problem.data = kData[row[theData]];
  problem.activation = kActivations[row[theActivation]];
  problem.datatype = kTypes[row[theType]];
  problem.biases = row[theBiases] != 0;
  problem.hotGate = kHotGates[row[theLoad]];
  problem.renormalize =
      row[theWeights] != 0 && !problem.dropless && problem.gate != moecclGateExpertChoice;
  problem.minCapacity = problem.renormalize && problem.capacityFactor < 1 ? 2 : 0;
  return problem;
}

bool fits(std::size_t column, std::size_t value, std::size_t other, std::size_t otherValue) {
  if (column != theGate) return true;
  // Choices per token that a gate can have, and experts that choose have a capacity.
  if (other == theChoices && value == moecclGateSwitch) return kChoices[otherValue] == 1;
  if (other == theChoices && value == moecclGateGShard) return kChoices[otherValue] == 2;
  return !(other == theCapacity && value == moecclGateExpertChoice && otherValue == kDropless);
}

std::vector<Problem> layersOn(const std::vector<NamedGrid>& grids) {
  std::vector<Problem> problems;
  for (const Row& row : pairwise(
           {grids.size(), moecclNumGates, std::size(kTokens), std::size(kChoices),
            std::size(kCapacities), std::size(kGroups), std::size(kResiduals), std::size(kData),
            std::size(kActivations), std::size(kTypes), 2, std::size(kHotGates), 2},
           fits)) {
    Problem& problem = problems.emplace_back(problemOf(grids[row[theGrid]], row));
    problem.seed = static_cast<unsigned>(problems.size());
    problem.training = problem.seed % 2 == 0;
  }
  return problems;
}

// On all ranks that a job here has, under every schedule, most choices dropped.
std::vector<Problem> droppingGates() {
  std::vector<Problem> problems;
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

}  // namespace

std::vector<Problem> layers() {
  std::vector<Problem> problems = layersOn(fewGrids());
  std::ranges::copy(droppingGates(), std::back_inserter(problems));
  return problems;
}

std::vector<Problem> layersOnAllGrids() { return layersOn(allGrids()); }

Problem six(const std::string& name) {
  Problem problem;
  problem.name = name;
  problem.grid = {2, 2, 3, kEsp};
  problem.experts = 6;
  problem.tokens = 20;
  return problem;
}

std::vector<Problem> hardProblems() {
  struct Hard {
    const char* name;
    void (*change)(Problem&);
  };
  const Hard table[] = {{"one place per group", [](Problem& p) { p.capacityFactor = 1e-6; }},
                        {"places for all", [](Problem& p) { p.capacityFactor = 1e300; }},
                        {"hot expert", [](Problem& p) { p.hotGate = 3; }},
                        {"experts without tokens",
                         [](Problem& p) {
                           p.hotGate = 3;
                           p.choices = 1;
                           p.capacityFactor = 6;
                         }},
                        {"every expert chosen", [](Problem& p) { p.choices = p.experts; }},
                        {"groups of one token, and empty ones",
                         [](Problem& p) {
                           p.tokens = 7;
                           p.capacityGroups = 16;
                         }},
                        {"one group that parts cut",
                         [](Problem& p) {
                           p.capacityGroups = 1;
                           p.capacityFactor = 0.6;
                         }},
                        {"more rows than an expert takes at once",
                         [](Problem& p) {
                           p.tokens = 601;
                           p.experts = 2;
                         }},
                        {"a residual branch of one", [](Problem& p) { p.residual = 1; }},
                        {"no tokens", [](Problem& p) { p.tokens = 0; }},
                        {"no tokens, dropless, a residual branch",
                         [](Problem& p) {
                           p.tokens = 0;
                           p.dropless = true;
                           p.residual = 5;
                         }},
                        {"one token, dropless",
                         [](Problem& p) {
                           p.tokens = 1;
                           p.dropless = true;
                         }},
                        {"idle experts, dropless", [](Problem& p) {
                           p.hotGate = 3;
                           p.choices = 1;
                           p.dropless = true;
                         }}};
  std::vector<Problem> problems;
  for (const Hard& row : table)
    for (bool ofAll : {false, true}) {
      Problem& problem = problems.emplace_back(six(row.name));
      row.change(problem);
      if (!ofAll) continue;
      problem.grid.nMp = problem.ranks();
      problem.datatype = moecclFloat64;
    }
  for (std::int64_t tokens : {0, 1})
    for (const NamedGrid& grid : {NamedGrid{"few tokens, one rank", {1, 1, 1, kEsp}},
                                  {"few tokens, a prime number", {5, 5, 1, kEp}},
                                  {"few tokens, MP of several ESP", {4, 2, 2, kEsp}}}) {
      Problem& problem = problems.emplace_back();
      problem.name = grid.name;
      problem.tokens = tokens;
      problem.grid = grid.shape;
      problem.experts = roundedUp(12, grid.shape.nEp);
    }
  return problems;
}

std::vector<Problem> narrowProblems() {
  std::vector<Problem> all;
  for (const moecclDataType_t datatype : {moecclFloat16, moecclBfloat16})
    for (const moecclGridShape_t& grid : {moecclGridShape_t{2, 2, 3, moecclOrderEspEp},
                                          {6, 3, 2, moecclOrderEpEsp},
                                          {1, 1, 1, moecclOrderEspEp}})
      for (int gate = 0; gate < moecclNumGates; ++gate) {
        Problem& problem = all.emplace_back(six("16 bits"));
        problem.seed = static_cast<unsigned>(all.size());
        problem.datatype = datatype;
        problem.grid = grid;
        problem.gate = static_cast<moecclMoeGate_t>(gate);
        if (problem.gate == moecclGateSwitch) problem.choices = 1;
        problem.tokens = 300 / (1 + grid.nMp);  // more than are converted at a time, and few
        problem.training = true;
        problem.residual = gate % 2 == 0 ? 5 : 0;
        problem.capacityGroups = grid.nMp;
        problem.dropless = gate % 3 == 0 && problem.gate != moecclGateExpertChoice;
      }
  return all;
}

std::vector<Problem> routedProblems() {
  struct Cluster {
    moecclGridShape_t grid;
    std::vector<int> nodes;
  };
  const Cluster clusters[] = {{{1, 4, 1, kEsp}, {2, 2}},    {{2, 2, 2, kEsp}, {2, 2}},
                              {{2, 2, 2, kEp}, {2, 2}},     {{2, 2, 3, kEsp}, {1, 3, 2}},
                              {{3, 4, 3, kEp}, {5, 7}},     {{1, 5, 1, kEsp}, {5}},
                              {{4, 1, 4, kEsp}, {1, 1, 2}}, {{1, 1, 1, kEsp}, {1}}};
  const moecclMoeGate_t gates[] = {moecclGateSoftmax, moecclGateNoisyTopK, moecclGateGShard,
                                   moecclGateSwitch, moecclGateSigmoid};
  const std::int64_t tokens[] = {0, 1, 17, 31}, choices[] = {1, 2, 5}, residuals[] = {0, 5};
  const moecclDataType_t types[] = {moecclFloat32, moecclFloat16, moecclBfloat16};
  const auto fits = [&](std::size_t column, std::size_t value, std::size_t other,
                        std::size_t otherValue) {
    // Where one expert has nearly all probability, or a gradient is of one token alone, 16 bits
    // hold too little of the gate's.
    if (column == 5 && other == 7) return value == 0 || otherValue == 0;
    if (column == 2 && other == 5) return tokens[value] != 1 || otherValue == 0;
    if (column != 1 || other != 3) return true;
    if (gates[value] == moecclGateSwitch) return choices[otherValue] == 1;
    return gates[value] != moecclGateGShard || choices[otherValue] == 2;
  };
  std::vector<Problem> problems;
  for (const Row& row :
       pairwise({std::size(clusters), std::size(gates), std::size(tokens), std::size(choices),
                 std::size(residuals), std::size(types), 2, std::size(kHotGates)},
                fits)) {
    Problem& problem = problems.emplace_back();
    problem.name = "routed";
    problem.grid = clusters[row[0]].grid;
    problem.nodes = clusters[row[0]].nodes;
    problem.gate = gates[row[1]];
    problem.tokens = tokens[row[2]];
    problem.choices = choices[row[3]];
    problem.residual = residuals[row[4]];
    problem.datatype = types[row[5]];
    problem.training = row[6] != 0;
    problem.hotGate = kHotGates[row[7]];
    problem.experts = roundedUp(12, problem.grid.nEp);
    problem.dropless = true;
    problem.tokenRouting = 1;
    problem.seed = static_cast<unsigned>(problems.size());
  }
  return problems;
}

std::vector<Problem> chunkedProblems() {
  const moecclGridShape_t grids[] = {
      {1, 1, 1, kEsp}, {1, 2, 2, kEsp}, {2, 2, 3, kEp}, {4, 2, 2, kEsp}};
  const std::int64_t chunks[] = {2, 3, 5}, perChunk[] = {1, 2}, tokens[] = {0, 7, 101};
  std::vector<Problem> problems;
  for (const Row& row : pairwise({std::size(grids), moecclNumGates, std::size(chunks),
                                  std::size(perChunk), std::size(tokens), std::size(kTypes)},
                                 [](auto...) { return true; })) {
    Problem& problem = problems.emplace_back();
    problem.name = "chunks";
    problem.grid = grids[row[0]];
    problem.gate = static_cast<moecclMoeGate_t>(row[1]);
    problem.choices = row[1] == moecclGateSwitch ? 1 : 2;
    problem.training = true;
    problem.chunks = chunks[row[2]];
    problem.capacityGroups = problem.grid.nMp * problem.chunks * perChunk[row[3]];
    problem.tokens = tokens[row[4]];
    problem.datatype = kTypes[row[5]];
    problem.capacityFactor = 0.8;
    problem.seed = static_cast<unsigned>(problems.size());
  }
  return problems;
}

std::vector<Problem> chunkedDroplessProblems() {
  const struct {
    moecclGridShape_t grid;
    std::vector<int> nodes;
  } clusters[] = {{{1, 1, 1, kEsp}, {1}},
                  {{1, 2, 2, kEsp}, {2, 2}},
                  {{2, 2, 3, kEp}, {4, 1, 1}},
                  {{4, 4, 1, kEsp}, {2, 2}}};
  const moecclMoeGate_t gates[] = {moecclGateSoftmax, moecclGateNoisyTopK, moecclGateSigmoid};
  const std::int64_t chunks[] = {2, 3, 5}, tokens[] = {0, 1, 7, 101}, residuals[] = {0, 5};
  const moecclDataType_t types[] = {moecclFloat32, moecclFloat64};
  const std::int64_t routings[] = {-1, 1};
  std::vector<Problem> problems;
  for (const Row& row : pairwise(
           {std::size(clusters), std::size(gates), std::size(chunks), std::size(tokens),
            std::size(residuals), std::size(types), std::size(routings)},
           [](std::size_t column, std::size_t value, std::size_t other, std::size_t otherValue) {
             // Token routing has no float64.
             return column != 5 || other != 6 || value == 0 || otherValue == 0;
           })) {
    Problem& problem = problems.emplace_back();
    problem.name = "chunks without capacity";
    problem.grid = clusters[row[0]].grid;
    problem.nodes = clusters[row[0]].nodes;
    problem.gate = gates[row[1]];
    problem.chunks = chunks[row[2]];
    problem.tokens = tokens[row[3]];
    problem.residual = residuals[row[4]];
    problem.datatype = types[row[5]];
    problem.tokenRouting = routings[row[6]];
    problem.choices = 2;
    problem.experts = roundedUp(12, problem.grid.nEp);
    problem.dropless = problem.training = true;
    problem.seed = static_cast<unsigned>(problems.size());
  }
  return problems;
}

std::vector<Problem> every(std::size_t stride, const std::vector<Problem>& problems, bool rest) {
  std::vector<Problem> chosen;
  for (std::size_t i = 0; i < problems.size(); ++i)
    if ((i % stride != 0) == rest) chosen.push_back(problems[i]);
  return chosen;
}

Problem hardProblem(const std::string& name) {
  for (const Problem& problem : hardProblems())
    if (problem.name == name) return problem;
  throw std::logic_error("no hard problem is called " + name);
}

std::string nameOfCase(const Problem& problem) {
  std::string name = std::to_string(problem.seed);
  bool capital = true;
  for (char c : problem.name) {
    const bool letter = std::isalnum(static_cast<unsigned char>(c)) != 0;
    if (letter)
      name += static_cast<char>(capital ? std::toupper(static_cast<unsigned char>(c)) : c);
    capital = !letter;
  }
  return name + "Mp" + std::to_string(problem.grid.nMp) + "Ep" + std::to_string(problem.grid.nEp) +
         "Esp" + std::to_string(problem.grid.nEsp) + "Gate" + std::to_string(problem.gate) +
         "Tokens" + std::to_string(problem.tokens);
}

void PrintTo(const Problem& problem, std::ostream* out) { *out << problem.text(); }

}  // namespace moeccl::test
