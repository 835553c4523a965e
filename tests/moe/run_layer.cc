// Runs a problem's layer on ranks that are threads, and reports what is wrong.
#include <gtest/gtest.h>

#include <limits>

#include "tests/moe/on_layer.h"

namespace moeccl::test {

std::vector<Outcome> runLayer(const Problem& problem, const Solved& solved, const Run& run) {
  SCOPED_TRACE(nameOf(run.schedule));
  std::vector<Outcome> outcomes(problem.ranks());
  Job job = jobOf(problem);
  job.algorithms = run.algorithms;
  job.ucx = run.ucx;
  job.processes = run.processes;
  job.progressThread = run.progressThread;
  moecclMoeConfig_t config = solved.layer.config;
  config.schedule = run.schedule;
  onLayer(job, problem, solved, config, [&](const LayerRank& at) {
    const moecclMoeLayer_t layer = at.layer;
    const moe_reference::Elements& input = at.input;
    checkThat(at.shapes.capacity == solved.expected[at.batch].capacity,
              "capacity " + std::to_string(at.shapes.capacity));
    moecclStream_t stream = nullptr;
    if (run.ownStream) check(moecclStreamCreate(at.comm, &stream));
    Outcome& outcome = outcomes[at.rank];
    const moe_reference::Elements poison = moe_reference::encode(
        problem.datatype, std::vector<double>(solved.inputs[at.batch].size(),
                                              std::numeric_limits<double>::quiet_NaN()));
    moe_reference::Elements output;
    for (int i = 0; i < run.forwards; ++i) {
      if (problem.training) check(moecclMoeLayerSetStep(layer, problem.step));
      output = run.inPlace ? input : poison;
      check(moecclMoeForward(layer, run.inPlace ? output.data() : input.data(), output.data(),
                             stream));
    }
    outcome.output = moe_reference::decode(problem.datatype, output);
    moecclMoeStats_t stats = MOECCL_MOE_STATS_INITIALIZER;
    check(moecclMoeGetStats(layer, &stats));
    outcome.auxiliaryLoss = stats.auxiliaryLoss;
    outcome.imbalance = stats.imbalance;
    outcome.droppedChoices = stats.droppedChoices;
    outcome.assigned.assign(stats.assigned, stats.assigned + problem.experts);
    outcome.kept.assign(stats.kept, stats.kept + problem.experts);
    checkSolved(problem, solved, at.rank, outcome);

    check(moecclStreamDestroy(stream));
  });
  return outcomes;
}

void expectAllSchedules(const Problem& problem) {
  const Solved solved = solve(problem);
  std::vector<Outcome> first;
  for (moecclSchedule_t schedule : schedulesOf(problem)) {
    const auto outcomes = runLayer(problem, solved, {.schedule = schedule});
    if (first.empty()) first = outcomes;
    for (int rank = 0; rank < problem.ranks(); ++rank) {
      SCOPED_TRACE(problem.text() + ", " + nameOf(schedule));
      EXPECT_EQ(outcomes[rank].auxiliaryLoss, first[rank].auxiliaryLoss);
      EXPECT_EQ(outcomes[rank].droppedChoices, first[rank].droppedChoices);
      EXPECT_EQ(outcomes[rank].kept, first[rank].kept);
      EXPECT_LE(moe_reference::largestError(outcomes[rank].output, first[rank].output),
                toleranceOf(problem.datatype));
      // What a probe's experts give back are the choices' weights.
      if (problem.probe) {
        EXPECT_EQ(outcomes[rank].output, first[rank].output);
      }
    }
  }
}

}  // namespace moeccl::test
