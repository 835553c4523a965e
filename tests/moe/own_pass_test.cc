// Passes around a caller's gate and experts, in every datatype: numbers are chosen so that all of
// them are exact.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/moe/problem.h"

namespace moeccl::test {
namespace {

using moe_reference::decode;
using moe_reference::encode;

constexpr std::int64_t kChoices = 2;
constexpr double kWeights[kChoices] = {0.5, 0.25};

double tokenAt(int batch, std::int64_t at) {
  return static_cast<double>((at * 7 + batch * 3) % 5 - 2) / 2;
}
double gradientAt(int batch, std::int64_t at) {
  return static_cast<double>((at * 5 + batch) % 3 - 1);
}
// The second choice of every third token is not made.
bool isMade(std::int64_t token, std::int64_t choice) { return choice == 0 || token % 3 != 0; }

template <typename Number>
std::vector<double> numbers(std::int64_t count, Number number) {
  std::vector<double> all;
  for (std::int64_t at = 0; at < count; ++at) all.push_back(number(at));
  return all;
}

// Experts double what they are given: on the first shard alone, as shards' results are added.
void doubleRows(const Problem& problem, const moecclMoeRows_t& rows, const void* from,
                bool counts) {
  const auto* const begin = static_cast<const std::byte*>(from);
  const std::size_t bytes =
      encode(problem.datatype, {0}).size() *
      static_cast<std::size_t>(rows.begins[problem.experts / problem.grid.nEp] * problem.embedding);
  std::vector<double> values = decode(problem.datatype, {begin, begin + bytes});
  for (double& value : values) value *= counts ? 2 : 0;
  std::ranges::copy(encode(problem.datatype, values), static_cast<std::byte*>(rows.results));
}

void runPass(const Problem& problem, moecclSchedule_t schedule, moecclComm_t comm, int rank) {
  moecclGrid_t grid = nullptr;
  check(moecclGridCreate(comm, problem.grid, &grid));
  moecclMoeConfig_t config = MOECCL_MOE_CONFIG_INITIALIZER;
  config.tokens = problem.tokens;
  config.embedding = problem.embedding;
  config.hidden = problem.grid.nEsp;
  config.experts = problem.experts;
  config.topK = kChoices;
  config.capacityFactor = problem.dropless ? 0 : static_cast<double>(problem.experts);
  config.dropless = problem.dropless;
  config.datatype = problem.datatype;
  config.schedule = schedule;
  config.training = 1;
  moecclMoeLayer_t layer = nullptr;
  check(moecclMoeLayerCreate(grid, &config, &layer));
  moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
  check(moecclMoeLayerGetShapes(layer, &shapes));
  const bool counts = shapes.firstHidden == 0;

  const int batch = rank / problem.grid.nMp;
  const std::int64_t size = problem.tokens * problem.embedding;
  const auto tokens = numbers(size, [&](auto at) { return tokenAt(batch, at); });
  const auto gradients = numbers(size, [&](auto at) { return gradientAt(batch, at); });
  std::vector<std::int32_t> experts;
  std::vector<double> weights, output, inputGradient, weightGradients;
  for (std::int64_t token = 0; token < problem.tokens; ++token) {
    double whole = 0, product = 0;
    for (std::int64_t m = 0; m < problem.embedding; ++m)
      product += tokens[token * problem.embedding + m] * gradients[token * problem.embedding + m];
    for (std::int64_t choice = 0; choice < kChoices; ++choice) {
      const bool made = isMade(token, choice);
      experts.push_back(made ? static_cast<std::int32_t>((token + batch + choice) % problem.experts)
                             : -1);
      weights.push_back(kWeights[choice]);
      whole += made ? 2 * kWeights[choice] : 0;
      weightGradients.push_back(made ? 2 * product : 0);
    }
    for (std::int64_t m = 0; m < problem.embedding; ++m) {
      output.push_back(whole * tokens[token * problem.embedding + m]);
      inputGradient.push_back(whole * gradients[token * problem.embedding + m]);
    }
  }

  const auto input = encode(problem.datatype, tokens), given = encode(problem.datatype, weights);
  auto result = encode(problem.datatype, gradients), ofWeights = given;
  moecclMoeRouting_t routing = MOECCL_MOE_ROUTING_INITIALIZER;
  routing.experts = experts.data();
  routing.weights = given.data();
  moecclMoePass_t pass = nullptr;
  moecclMoeRows_t rows = MOECCL_MOE_ROWS_INITIALIZER;
  check(moecclMoeBegin(layer, input.data(), &routing, nullptr, &pass, &rows));
  doubleRows(problem, rows, rows.rows, counts);
  check(moecclMoeEnd(pass, result.data(), nullptr));
  checkThat(decode(problem.datatype, result) == output, "output");
  result = encode(problem.datatype, gradients);
  check(moecclMoeEndBackward(pass, result.data(), nullptr, &rows));
  doubleRows(problem, rows, rows.results, counts);
  check(moecclMoeBeginBackward(pass, result.data(), ofWeights.data(), nullptr));
  checkThat(decode(problem.datatype, result) == inputGradient, "gradient of the input");
  checkThat(decode(problem.datatype, ofWeights) == weightGradients, "gradient of the weights");
  check(moecclMoePassDestroy(pass));
  check(moecclMoeLayerDestroy(layer));
  check(moecclGridDestroy(grid));
}

TEST(OwnPasses, AreExactInEveryDatatype) {
  for (const moecclDataType_t datatype :
       {moecclFloat32, moecclFloat64, moecclFloat16, moecclBfloat16})
    for (const moecclGridShape_t& grid : {moecclGridShape_t{2, 2, 3, moecclOrderEspEp},
                                          {1, 3, 1, moecclOrderEspEp},
                                          {4, 2, 2, moecclOrderEpEsp},
                                          {1, 1, 1, moecclOrderEspEp}})
      for (const bool dropless : {false, true})
        for (const std::int64_t tokens : {0, 1, 23}) {
          Problem problem{.name = "own experts"};
          problem.grid = grid;
          problem.tokens = tokens;
          problem.experts = 4 * grid.nEp;
          problem.datatype = datatype;
          problem.dropless = dropless;
          for (const moecclSchedule_t schedule : schedulesOf(problem)) {
            if (schedule == moecclScheduleBaseline && grid.nMp > 1) continue;
            SCOPED_TRACE(problem.text() + ", " + nameOf(schedule));
            runJob(jobOf(problem),
                   [&](moecclComm_t comm, int rank) { runPass(problem, schedule, comm, rank); });
            if (HasFailure()) return;
          }
        }
}

}  // namespace
}  // namespace moeccl::test
