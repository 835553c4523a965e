// Layers that learn, on real communicators. What they would measure is in no test's hands, so texts
// as moecclMoeLayerSaveChoice gives them tell them that another schedule takes no time at all.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "tests/moe/on_layer.h"
#include "tests/moe/own_numbers.h"

namespace moeccl::test {
namespace {

using moe_reference::decode;
using moe_reference::Elements;
using moe_reference::encode;

constexpr int kPeriod = 16;           // steps
constexpr int kChange = 4 * kPeriod;  // at whose beginning the layer changes
constexpr int kSteps = kChange + kPeriod / 2;

std::string textOf(decltype(moecclMoeLayerSaveChoice) function, moecclMoeLayer_t layer) {
  std::size_t bytes = 0;
  check(function(layer, nullptr, &bytes));
  std::string text(bytes, 'x');
  check(function(layer, text.data(), &bytes));
  checkThat(bytes == text.size() && text.back() == '\0', "size of the text");
  text.pop_back();
  return text;
}

moecclMoeShapes_t shapesOf(moecclMoeLayer_t layer) {
  moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
  check(moecclMoeLayerGetShapes(layer, &shapes));
  return shapes;
}
moecclSchedule_t scheduleOf(moecclMoeLayer_t layer) { return shapesOf(layer).schedule; }
std::int64_t chunksOf(moecclMoeLayer_t layer) { return shapesOf(layer).chunks; }

// The layer's alternatives.
std::vector<std::string> alternativesOf(const std::string& text) {
  std::istringstream words(text.substr(text.find("alternatives ")));
  std::string word;
  words >> word;
  std::vector<std::string> all;
  while (words >> word && word != "current") all.push_back(word);
  return all;
}

// What the layer has learned, and that this schedule takes no time.
std::string withRumour(moecclMoeLayer_t layer, const std::string& schedule) {
  std::string text = textOf(moecclMoeLayerSaveChoice, layer);
  const auto with = [&](const std::string& numbers) {
    std::string changed = text;
    return changed.replace(changed.rfind("end"), 3,
                           "evidence " + schedule + " sure " + numbers + "\nend");
  };
  // How many numbers it takes the layer says itself.
  checkThat(moecclMoeLayerRestoreChoice(layer, with("0").c_str()) != moecclSuccess, "an error");
  const std::string error = moecclGetLastError(nullptr), before = "whose passes have ";
  checkThat(error.find(before) != std::string::npos, error.c_str());
  const int count = std::stoi(error.substr(error.find(before) + before.size()));
  std::string numbers = std::to_string(count);
  for (int i = 0; i < count; ++i) numbers += " 1e-09";
  return with(numbers);
}

// All schedules that the layer may take, but the one it has.
std::vector<std::string> othersOf(moecclMoeLayer_t layer) {
  std::vector<std::string> all = alternativesOf(textOf(moecclMoeLayerSaveChoice, layer));
  std::erase(all, nameOf(scheduleOf(layer)));
  return all;
}

// Every rank sees what the others ran under.
void checkSame(moecclComm_t comm, const Problem& problem, std::vector<std::int32_t> mine) {
  std::vector<std::int32_t> all(mine.size() * static_cast<std::size_t>(problem.ranks()));
  check(moecclAllGather(mine.data(), all.data(), mine.size(), moecclInt32, comm, nullptr));
  for (std::size_t i = 0; i < all.size(); ++i)
    checkThat(all[i] == mine[i % mine.size()], "ranks ran under different schedules");
}

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

// That this schedule takes no time at all.
void makeBelieve(moecclMoeLayer_t layer, const std::string& schedule) {
  check(moecclMoeLayerRestoreChoice(layer, withRumour(layer, schedule).c_str()));
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
    const std::vector<std::string> others = othersOf(at.layer);
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
    checkSame(at.comm, problem, ran);
    const std::string told = textOf(moecclMoeLayerExplainChoice, at.layer);
    checkThat(told.find("runs under " + others.back() + ", changed 1 times") == 0, told.c_str());
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
    checkSame(at.comm, problem, ran);
    const std::string text = textOf(moecclMoeLayerSaveChoice, at.layer);
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
    const std::string other = othersOf(at.layer).back();
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

// The caller's experts, two passes in flight: each goes on under the schedule that it began with.
TEST(Learning, AroundOwnExpertsWithPassesInFlight) {
  Problem problem;
  problem.name = "own experts";
  problem.grid = {2, 2, 3, moecclOrderEspEp};
  problem.tokens = 23;
  problem.experts = 8;
  runJob(jobOf(problem), [&](moecclComm_t comm, int rank) {
    moecclGrid_t grid = makeGrid(comm, problem.grid);
    moecclMoeConfig_t config = ownConfig(problem);
    config.learn = 1;
    moecclMoeLayer_t layer = nullptr;
    check(moecclMoeLayerCreate(grid, &config, &layer));
    const std::string other = othersOf(layer).back();
    makeBelieve(layer, other);
    const bool counts = shapesOf(layer).firstHidden == 0;
    const OwnNumbers own(problem, rank / problem.grid.nMp);
    const auto input = encode(problem.datatype, own.tokens);
    const auto given = encode(problem.datatype, own.weights);
    const auto gradients = encode(problem.datatype, own.gradients);
    auto result = gradients, ofWeights = given;
    moecclMoeRouting_t routing = MOECCL_MOE_ROUTING_INITIALIZER;
    routing.experts = own.experts.data();
    routing.weights = given.data();
    struct InFlight {
      moecclMoePass_t pass = nullptr;
      moecclMoeRows_t rows = MOECCL_MOE_ROWS_INITIALIZER;
    } passes[2];
    std::vector<std::int32_t> ran;
    for (int i = 0; i < kSteps; ++i) {
      InFlight &now = passes[i % 2], &before = passes[(i + 1) % 2];
      check(moecclMoeBegin(layer, input.data(), &routing, nullptr, &now.pass, &now.rows));
      ran.push_back(scheduleOf(layer));
      if (before.pass != nullptr) {
        doubleRows(problem, before.rows, before.rows.rows, counts);
        check(moecclMoeEnd(before.pass, result.data(), nullptr));
        checkThat(decode(problem.datatype, result) == own.output, "output");
        check(moecclMoeEndBackward(before.pass, gradients.data(), nullptr, &before.rows));
        doubleRows(problem, before.rows, before.rows.results, counts);
        check(moecclMoeBeginBackward(before.pass, result.data(), ofWeights.data(), nullptr));
        checkThat(decode(problem.datatype, result) == own.inputGradient, "gradient of the input");
        checkThat(decode(problem.datatype, ofWeights) == own.weightGradients,
                  "gradient of the weights");
        check(moecclMoePassDestroy(before.pass));
        before.pass = nullptr;
      }
    }
    check(moecclMoePassDestroy(passes[(kSteps + 1) % 2].pass));
    checkSame(comm, problem, ran);
    for (int i = 0; i < kSteps; ++i)
      checkThat((nameOf(static_cast<moecclSchedule_t>(ran[i])) == other) == (i >= kChange),
                "the change is at another step");
    check(moecclMoeLayerDestroy(layer));
    check(moecclGridDestroy(grid));
  });
}

// The layer's choice, but under that schedule.
std::string textUnder(moecclMoeLayer_t layer, const std::string& schedule) {
  std::string text = textOf(moecclMoeLayerSaveChoice, layer);
  const std::string current = std::string("current ") + nameOf(scheduleOf(layer));
  return text.replace(text.find(current), current.size(), "current " + schedule);
}

// Opens a pass around own experts, and closes it.
moecclResult_t beginOwn(const LayerRank& at, const Problem& problem) {
  const OwnNumbers own(problem, at.batch);
  const auto given = encode(problem.datatype, own.weights);
  moecclMoeRouting_t routing = MOECCL_MOE_ROUTING_INITIALIZER;
  routing.experts = own.experts.data();
  routing.weights = given.data();
  moecclMoePass_t pass = nullptr;
  moecclMoeRows_t rows = MOECCL_MOE_ROWS_INITIALIZER;
  const moecclResult_t result =
      moecclMoeBegin(at.layer, at.input.data(), &routing, nullptr, &pass, &rows);
  check(moecclMoePassDestroy(pass));
  return result;
}

// Passes around own experts know no chunks.
TEST(Learning, TakesNoChunksFromTheFirstBeginOn) {
  const Problem problem = inChunks();
  const Solved solved = solve(problem);
  onLearner(problem, solved, [&](const LayerRank& at) {
    const auto refused = [&] {
      const std::string told = textOf(moecclMoeLayerExplainChoice, at.layer);
      const std::size_t line = told.find("S1:chunks=2 ");
      checkThat(line != std::string::npos, told.c_str());
      return told.substr(line, told.find('\n', line) - line).find("it cannot be taken") !=
             std::string::npos;
    };
    // It would change to chunks, but for Begin; or it runs in chunks.
    makeBelieve(at.layer, "S1:chunks=2");
    for (int i = 0; i + 1 < kChange; ++i) stepOf(at, problem);
    checkThat(!refused() && chunksOf(at.layer) == 1, "it is refused before any Begin");
    for (const char* schedule : {"", "S1:chunks=2"}) {
      if (*schedule != '\0') {
        check(moecclMoeLayerRestoreChoice(at.layer, textUnder(at.layer, schedule).c_str()));
        checkThat(chunksOf(at.layer) == 2, "it does not run in chunks");
      }
      check(beginOwn(at, problem));
      for (int i = 0; i < kSteps; ++i) {
        checkThat(refused() && chunksOf(at.layer) == 1, "chunks might be taken");
        stepOf(at, problem);
      }
    }
  });
}

// The layer goes without the chunks that it has chosen, and refuses those that were asked for. A
// Forward that came before has its Backward.
TEST(Choices, OfChunksEndWithPassesAroundOwnExperts) {
  const Problem problem = inChunks();
  const Solved solved = solve(problem);
  moecclMoeConfig_t config = inTwoChunks(solved);
  const std::vector<Step> expected = stepsOf(problem, solved, config);
  onLayer(jobOf(problem), problem, solved, config, [&](const LayerRank& at) {
    checkError(beginOwn(at, problem), moecclInvalidUsage, nullptr,
               {"config.chunks is 2", "it must be 0 or 1"});
  });
  config.chunks = 0;
  onLayer(jobOf(problem), problem, solved, config, [&](const LayerRank& at) {
    check(moecclMoeLayerRestoreChoice(at.layer, textUnder(at.layer, "S1:chunks=2").c_str()));
    Step step{at.input, at.input};
    check(moecclMoeForward(at.layer, at.input.data(), step.output.data(), nullptr));
    checkThat(chunksOf(at.layer) == 2, "it does not run in chunks");
    check(beginOwn(at, problem));
    checkThat(chunksOf(at.layer) == 1, "it still runs in chunks");
    check(moecclMoeBackward(at.layer, at.input.data(), 0.5, step.gradient.data(), nullptr));
    checkStep(step, expected[at.rank]);
    stepOf(at, problem);
  });
}

// A checkpoint: a layer that learns goes on, one that does not stays.
TEST(Choices, AreRestored) {
  const Problem problem = training("restored");
  const Solved solved = solve(problem);
  const Fixed fixed = fixedSteps(problem, solved);
  onLearner(problem, solved, [&](const LayerRank& at) {
    const std::string other = othersOf(at.layer).back();
    makeBelieve(at.layer, other);
    const std::string text = textUnder(at.layer, other);
    for (const moecclMoeConfig_t& like : {learning(solved), solved.layer.config}) {
      moecclMoeLayer_t layer = nullptr;
      check(moecclMoeLayerCreate(at.grid, &like, &layer));
      check(moecclMoeLayerSetWeights(layer, &at.shard.weights));
      check(moecclMoeLayerRestoreChoice(layer, text.c_str()));
      const std::string again = textOf(moecclMoeLayerSaveChoice, layer);
      checkThat(like.learn == 0 || again.find("evidence " + other) != std::string::npos,
                "what was learned is lost");
      check(moecclMoeLayerRestoreChoice(layer, again.c_str()));
      checkThat(textOf(moecclMoeLayerSaveChoice, layer) == again, "the text does not come back");
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
    const std::string text = textOf(moecclMoeLayerSaveChoice, at.layer);
    const auto refused = [&](const char* what, moecclResult_t result,
                             const std::vector<std::string>& parts) {
      checkError(moecclMoeLayerRestoreChoice(at.layer, what), result, nullptr, parts);
      checkThat(textOf(moecclMoeLayerSaveChoice, at.layer) == text, "it changed all the same");
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
    std::string text = textOf(moecclMoeLayerSaveChoice, at.layer);
    text.replace(text.find("current S2"), 10, "current S1");
    checkError(moecclMoeLayerRestoreChoice(at.layer, text.c_str()), moecclInvalidUsage, nullptr,
               {"S1", "config.schedule", "S2"});
  });
}

}  // namespace
}  // namespace moeccl::test
