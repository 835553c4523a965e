// Layers that learn, on real communicators.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/api/choice_text.h"
#include "tests/moe/on_layer.h"

namespace moeccl::test {
namespace {

using moe_reference::Elements;

moecclMoeShapes_t shapesOf(moecclMoeLayer_t layer) {
  moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
  check(moecclMoeLayerGetShapes(layer, &shapes));
  return shapes;
}
moecclSchedule_t scheduleOf(moecclMoeLayer_t layer) { return shapesOf(layer).schedule; }
std::int64_t chunksOf(moecclMoeLayer_t layer) { return shapesOf(layer).chunks; }

struct Step {
  Elements output, gradient;
};
// One step of the layer.
Step stepOf(const LayerRank& at, const Problem& problem) {
  Step step{at.input, {}};
  check(moecclMoeForward(at.layer, at.input.data(), step.output.data(), nullptr));
  if (!problem.training) return step;
  step.gradient = at.input;
  check(moecclMoeBackward(at.layer, at.input.data(), 0.5, step.gradient.data(), nullptr));
  return step;
}

// What each rank's layer makes of its input when it is made so.
std::vector<Step> stepsOf(const Problem& problem, const Solved& solved,
                          const moecclMoeConfig_t& config) {
  std::vector<Step> all(static_cast<std::size_t>(problem.ranks()));
  onLayer(jobOf(problem), problem, solved, config,
          [&](const LayerRank& at) { all[at.rank] = stepOf(at, problem); });
  return all;
}

// By schedule what a layer makes that has no choice, on each rank.
using Fixed = std::vector<std::vector<Step>>;
Fixed fixedSteps(const Problem& problem, const Solved& solved) {
  Fixed all(moecclNumSchedules);
  moecclMoeConfig_t config = solved.layer.config;
  for (const moecclSchedule_t schedule : schedulesOf(problem)) {
    config.schedule = schedule;
    all[schedule] = stepsOf(problem, solved, config);
  }
  return all;
}

void checkStep(const Step& step, const Step& expected) {
  checkThat(step.output == expected.output, "output");
  checkThat(step.gradient == expected.gradient, "gradient");
}

moecclMoeConfig_t learning(const Solved& solved) {
  moecclMoeConfig_t config = solved.layer.config;
  config.learn = 1;
  return config;
}

moecclMoeConfig_t inTwoChunks(const Solved& solved) {
  moecclMoeConfig_t config = solved.layer.config;
  config.schedule = moecclScheduleS1;
  config.chunks = 2;
  return config;
}

void onLearner(const Problem& problem, const Solved& solved, const LayerFunction& function) {
  onLayer(jobOf(problem), problem, solved, learning(solved), function);
}

// Runs a layer that comes to believe that another schedule is faster, and checks each step of it.
void expectChange(const Problem& problem, const Solved& solved, const Fixed& fixed, bool ucx,
                  bool processes) {
  SCOPED_TRACE(problem.text());
  Job job = jobOf(problem);
  job.ucx = ucx;
  job.processes = processes;
  onLayer(job, problem, solved, learning(solved), [&](const LayerRank& at) {
    const moecclSchedule_t before = scheduleOf(at.layer);
    const std::vector<std::string> others = othersOf(saved(at.layer));
    checkThat(!others.empty(), "there is no other schedule to take");
    makeBelieve(at.layer, others.back());
    std::vector<std::int32_t> ran;
    for (int i = 0; i < kSteps; ++i) {
      const Step step = stepOf(at, problem);
      const moecclSchedule_t schedule = scheduleOf(at.layer);
      ran.push_back(schedule);
      checkThat((nameOf(schedule) == others.back()) == (i >= kChange),
                "the change is at another step");
      checkStep(step, fixed[schedule][at.rank]);
    }
    checkThat(ran.front() == before, "the layer did not begin as it was made");
    checkSame(at.comm, ran);
    const std::string told = textOf(moecclMoeLayerExplainChoice, at.layer);
    checkThat(told.starts_with(others.back() + " in "), told.c_str());
    checkThat(told.find("\nruns under " + others.back() + ", changed 1 times") != told.npos,
              told.c_str());
  });
}

Problem training(const char* name) {
  Problem problem = six(name);
  problem.training = true;
  return problem;
}

TEST(Learning, ChangesOnAllRanksAtOneStepWithTheSameResults) {
  std::vector<Problem> problems = {training("training"), six("inference"), training("dropless"),
                                   training("all ranks"), training("residual branch")};
  problems[2].dropless = true;
  problems[2].chunks = 1;
  problems[2].grid = {1, 3, 2, moecclOrderEspEp};
  problems[3].grid.nMp = problems[3].ranks();
  problems[4].residual = 7;
  for (const Problem& problem : problems) {
    const Solved solved = solve(problem);
    expectChange(problem, solved, fixedSteps(problem, solved), false, false);
  }
}

TEST(Learning, OverTheNetworkInProcesses) {
  const Problem problem = training("processes");
  const Solved solved = solve(problem);
  const Fixed fixed = fixedSteps(problem, solved);
  for (const bool processes : {false, true}) expectChange(problem, solved, fixed, true, processes);
}

Problem inChunks() {
  Problem problem = training("chunks");
  problem.tokens = 43;
  problem.capacityGroups = 4;
  return problem;
}

TEST(Learning, ChangesTheNumberOfChunks) {
  const Problem problem = inChunks();
  const Solved solved = solve(problem);
  const std::vector<Step> expected = stepsOf(problem, solved, inTwoChunks(solved));
  onLearner(problem, solved, [&](const LayerRank& at) {
    makeBelieve(at.layer, "S1:chunks=2");
    for (int i = 0; i < kSteps; ++i) {
      const Step step = stepOf(at, problem);
      checkThat(chunksOf(at.layer) == (i < kChange ? 1 : 2), "the change is at another step");
      if (i >= kChange) checkStep(step, expected[at.rank]);
    }
  });
}

// Nothing is tried, asked or changed: neither a schedule that was named nor one without learning.
TEST(Learning, LeavesOtherLayersAlone) {
  const Problem problem = training("named");
  const Solved solved = solve(problem);
  for (const moecclSchedule_t schedule : {moecclScheduleS2, moecclScheduleAuto}) {
    moecclMoeConfig_t config = solved.layer.config;
    config.schedule = schedule;
    config.learn = schedule == moecclScheduleAuto ? 0 : 1;
    onLayer(jobOf(problem), problem, solved, config, [&](const LayerRank& at) {
      const moecclSchedule_t before = scheduleOf(at.layer);
      for (int i = 0; i < kSteps; ++i) {
        stepOf(at, problem);
        checkThat(scheduleOf(at.layer) == before, "it changed");
      }
      const std::string told = textOf(moecclMoeLayerExplainChoice, at.layer);
      checkThat(told.starts_with(std::string(nameOf(before)) + " in ") &&
                    told.find(", by links") != told.npos,
                told.c_str());
      checkThat(told.find(schedule == moecclScheduleAuto ? "does not learn" : "no other") !=
                    std::string::npos,
                told.c_str());
    });
  }
}

// By itself: whatever it measures, ranks agree on it, and results stay.
TEST(Learning, ByItsOwnMeasures) {
  const Problem problem = training("by itself");
  const Solved solved = solve(problem);
  const Fixed fixed = fixedSteps(problem, solved);
  onLearner(problem, solved, [&](const LayerRank& at) {
    std::vector<std::int32_t> ran;
    for (int i = 0; i < 200; ++i) {
      const Step step = stepOf(at, problem);
      ran.push_back(scheduleOf(at.layer));
      checkStep(step, fixed[ran.back()][at.rank]);
    }
    checkSame(at.comm, ran);
    const std::string text = saved(at.layer);
    checkThat(text.find("evidence ") != std::string::npos, "nothing was measured");
    // Where it has changed just now, it knows no phases of what it runs under.
    std::string told = textOf(moecclMoeLayerExplainChoice, at.layer);
    for (int i = 0; i < 200 && told.find("  forward") == std::string::npos; ++i) {
      stepOf(at, problem);
      told = textOf(moecclMoeLayerExplainChoice, at.layer);
    }
    for (const char* part : {"ms a step measured", "forward ", "backward ", "dispatch", "experts"})
      checkThat(told.find(part) != std::string::npos, (part + std::string(" in\n") + told).c_str());
  });
}

// Forwards whose Backward comes later, or twice, around the step of a change.
TEST(Learning, NeverSplitsAForwardFromItsBackward) {
  const Problem problem = training("later");
  const Solved solved = solve(problem);
  const Fixed fixed = fixedSteps(problem, solved);
  onLearner(problem, solved, [&](const LayerRank& at) {
    const std::string other = othersOf(saved(at.layer)).back();
    makeBelieve(at.layer, other);
    Elements output = at.input, gradient = at.input;
    checkError(moecclMoeBackward(at.layer, at.input.data(), 0.5, gradient.data(), nullptr),
               moecclInvalidUsage, nullptr, {"no moecclMoeForward has completed"});
    for (int i = 0; i < kSteps; ++i) {
      check(moecclMoeForward(at.layer, at.input.data(), output.data(), nullptr));
      const moecclSchedule_t schedule = scheduleOf(at.layer);
      for (int again = 0; again < 2; ++again) {
        check(moecclMoeBackward(at.layer, at.input.data(), 0.5, gradient.data(), nullptr));
        checkThat(gradient == fixed[schedule][at.rank].gradient, "gradient");
        checkThat(scheduleOf(at.layer) == schedule, "it changed in the middle");
      }
    }
    checkThat(nameOf(scheduleOf(at.layer)) == other, "it did not change");
  });
}

// A checkpoint: a layer that learns goes on, one that does not stays.
TEST(Choices, AreRestored) {
  const Problem problem = training("restored");
  const Solved solved = solve(problem);
  const Fixed fixed = fixedSteps(problem, solved);
  onLearner(problem, solved, [&](const LayerRank& at) {
    const std::string other = othersOf(saved(at.layer)).back();
    makeBelieve(at.layer, other);
    const std::string text = under(saved(at.layer), other);
    for (const moecclMoeConfig_t& like : {learning(solved), solved.layer.config}) {
      moecclMoeLayer_t layer = nullptr;
      check(moecclMoeLayerCreate(at.grid, &like, &layer));
      check(moecclMoeLayerSetWeights(layer, &at.shard.weights));
      check(moecclMoeLayerRestoreChoice(layer, text.c_str()));
      const std::string again = saved(layer);
      checkThat(like.learn == 0 || again.find("evidence " + other) != std::string::npos,
                "what was learned is lost");
      check(moecclMoeLayerRestoreChoice(layer, again.c_str()));
      checkThat(saved(layer) == again, "the text does not come back");
      LayerRank its = at;
      its.layer = layer;
      const Step step = stepOf(its, problem);
      checkThat(nameOf(scheduleOf(layer)) == other, "not the schedule that was saved");
      checkStep(step, fixed[scheduleOf(layer)][at.rank]);
      check(moecclMoeLayerDestroy(layer));
    }
  });
}

TEST(Choices, ThatAreWrongAreRefusedByAllRanks) {
  const Problem problem = training("refused");
  const Solved solved = solve(problem);
  onLearner(problem, solved, [&](const LayerRank& at) {
    const std::string text = saved(at.layer);
    const auto refused = [&](const char* what, moecclResult_t result,
                             const std::vector<std::string>& parts) {
      checkError(moecclMoeLayerRestoreChoice(at.layer, what), result, nullptr, parts);
      checkThat(saved(at.layer) == text, "it changed all the same");
    };
    refused(nullptr, moecclInvalidArgument, {"moecclMoeLayerRestoreChoice", "text is NULL"});
    refused("", moecclInvalidArgument, {"it ends where"});
    std::string other = text;
    other.replace(other.find("tokens="), 7, "tokens=9");
    refused(other.c_str(), moecclInvalidArgument, {"tokens=9"});
    // One rank alone, and ranks that are not alike.
    refused(at.rank == 1 ? "" : text.c_str(),
            at.rank == 1 ? moecclInvalidArgument : moecclRemoteError, {"it ends where"});
    refused(at.rank == 1 ? (text + "\n").c_str() : text.c_str(), moecclInvalidUsage,
            {"different texts", "rank 1"});
    stepOf(at, problem);

    std::size_t bytes = 4;
    char few[4];
    for (const auto function : {moecclMoeLayerSaveChoice, moecclMoeLayerExplainChoice}) {
      check(function(at.layer, few, &bytes));
      checkThat(bytes > 4 && few[3] == '\0', "what does not fit is cut");
      bytes = 4;
      checkError(function(at.layer, nullptr, &bytes), moecclInvalidArgument, nullptr, {"text"});
      checkError(function(at.layer, few, nullptr), moecclInvalidArgument, nullptr, {"bytes"});
      checkError(function(nullptr, few, &bytes), moecclInvalidArgument, nullptr, {"layer"});
    }
    checkError(moecclMoeLayerRestoreChoice(nullptr, ""), moecclInvalidArgument, nullptr, {"layer"});
  });
  moecclMoeConfig_t config = solved.layer.config;
  config.schedule = moecclScheduleS2;
  onLayer(jobOf(problem), problem, solved, config, [&](const LayerRank& at) {
    const std::string text = under(saved(at.layer), "S1");
    checkError(moecclMoeLayerRestoreChoice(at.layer, text.c_str()), moecclInvalidUsage, nullptr,
               {"S1", "config.schedule", "S2"});
  });
}

}  // namespace
}  // namespace moeccl::test
