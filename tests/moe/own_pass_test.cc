// Passes around a caller's gate and experts, in every datatype.
#include <gtest/gtest.h>

#include "tests/moe/own_numbers.h"

namespace moeccl::test {
namespace {

using moe_reference::decode;
using moe_reference::encode;

void runPass(const Problem& problem, moecclSchedule_t schedule, moecclComm_t comm, int rank) {
  moecclGrid_t grid = nullptr;
  check(moecclGridCreate(comm, problem.grid, &grid));
  moecclMoeConfig_t config = ownConfig(problem);
  config.schedule = schedule;
  moecclMoeLayer_t layer = nullptr;
  check(moecclMoeLayerCreate(grid, &config, &layer));
  moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
  check(moecclMoeLayerGetShapes(layer, &shapes));
  const bool counts = shapes.firstHidden == 0;

  const OwnNumbers own(problem, rank / problem.grid.nMp);
  const auto input = encode(problem.datatype, own.tokens);
  const auto given = encode(problem.datatype, own.weights);
  auto result = encode(problem.datatype, own.gradients), ofWeights = given;
  moecclMoeRouting_t routing = MOECCL_MOE_ROUTING_INITIALIZER;
  routing.experts = own.experts.data();
  routing.weights = given.data();
  moecclMoePass_t pass = nullptr;
  moecclMoeRows_t rows = MOECCL_MOE_ROWS_INITIALIZER;
  check(moecclMoeBegin(layer, input.data(), &routing, nullptr, &pass, &rows));
  doubleRows(problem, rows, rows.rows, counts);
  check(moecclMoeEnd(pass, result.data(), nullptr));
  checkThat(decode(problem.datatype, result) == own.output, "output");
  result = encode(problem.datatype, own.gradients);
  check(moecclMoeEndBackward(pass, result.data(), nullptr, &rows));
  doubleRows(problem, rows, rows.results, counts);
  check(moecclMoeBeginBackward(pass, result.data(), ofWeights.data(), nullptr));
  checkThat(decode(problem.datatype, result) == own.inputGradient, "gradient of the input");
  checkThat(decode(problem.datatype, ofWeights) == own.weightGradients, "gradient of the weights");
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
