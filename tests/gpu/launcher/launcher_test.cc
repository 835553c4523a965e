// The launcher of ranks on a GPU, with shell scripts as ranks.
#include "tests/gpu/launcher/launcher.h"

#include <gtest/gtest.h>

namespace moeccl::gpu {
namespace {

struct Outcome {
  Counts counts;
  std::string text;
};

Outcome run(const std::vector<std::string>& scripts, std::vector<std::string> tests = {"a", "b"},
            std::chrono::seconds limit = std::chrono::seconds(30)) {
  Launch job{.ranks = static_cast<int>(scripts.size()),
             .tests = std::move(tests),
             .limit = limit,
             .context = "on scripts"};
  job.command = [&](int rank) {
    return std::vector<std::string>{"sh", "-c", scripts[static_cast<std::size_t>(rank)]};
  };
  job.environment = [](int rank) {
    return std::vector<std::string>{"LAUNCHER_RANK=" + std::to_string(rank), "PATH=/nowhere"};
  };
  testing::internal::CaptureStdout();
  const Counts counts = launch(job);
  return {counts, testing::internal::GetCapturedStdout()};
}

const std::string kWell =
    "exec >&3; echo begin 0; echo step one; echo end 0 1; echo begin 1; echo step two; echo end 1 "
    "1";

void expectCounts(const Outcome& outcome, int passed, int failed, std::size_t done) {
  EXPECT_EQ(outcome.counts.passed, passed) << outcome.text;
  EXPECT_EQ(outcome.counts.failed, failed) << outcome.text;
  EXPECT_EQ(outcome.counts.done, done) << outcome.text;
}

void expectText(const Outcome& outcome, const std::string& part) {
  EXPECT_NE(outcome.text.find(part), std::string::npos) << outcome.text;
}

TEST(Launcher, CountsTestsThatAllRanksHavePassed) {
  const Outcome outcome = run({kWell, kWell, kWell});
  expectCounts(outcome, 2, 0, 2);
  expectText(outcome, "ok     a, 1 steps on scripts\nok     b, 1 steps on scripts\n");
}

// A fast rank's failure belongs to its own test, not to the one that others are in.
TEST(Launcher, KnowsWhichTestAFailureIsOf) {
  const std::string slow = "sleep 0.5; " + kWell;
  const Outcome outcome =
      run({slow,
           "exec >&3; echo begin 0; echo end 0 1; echo begin 1; echo fail in b; "
           "echo end 1 1"});
  expectCounts(outcome, 1, 1, 2);
  expectText(outcome, "ok     a, ");
  expectText(outcome, "FAILED b on scripts\n  rank 1: in b\n");
}

TEST(Launcher, LeavesOutTestsWithoutSteps) {
  expectCounts(run({"exec >&3; echo begin 0; echo end 0 0; echo begin 1; echo end 1 1"}), 1, 0, 2);
}

TEST(Launcher, NamesRanksThatAreStuckAndEndsThem) {
  const Outcome outcome = run(
      {"exec >&3; echo begin 0; echo end 0 1; echo begin 1; echo step the second; sleep 60", kWell},
      {"a", "b", "c"}, std::chrono::seconds(4));
  expectCounts(outcome, 1, 1, 2);
  expectText(outcome, "FAILED b on scripts");
  expectText(outcome, "rank 0 has said nothing for ");
  expectText(outcome, "since: the second");
  expectText(outcome, "rank 1 is done");
}

TEST(Launcher, TellsHowRanksHaveDied) {
  const Outcome killed =
      run({"exec >&3; echo begin 0; echo step the first; kill -9 $$", "sleep 60"});
  expectCounts(killed, 0, 1, 1);
  expectText(killed, "rank 0 ended by signal 9 in: the first");
  const Outcome ended = run({"exec >&3; echo begin 0; echo step the first; exit 5", kWell});
  expectCounts(ended, 0, 1, 1);
  expectText(ended, "rank 0 ended with 5 in: the first");
}

TEST(Launcher, FailsWhatEndsBadly) {
  const Outcome outcome = run({kWell + "; exit 3", kWell});
  expectCounts(outcome, 2, 1, 2);
  expectText(outcome, "FAILED the end on scripts");
}

TEST(Launcher, FailsAllWhereNobodyBegins) { expectCounts(run({"exit 1", "exit 1"}), 0, 2, 2); }

TEST(Launcher, FailsWhatARankHasLeftOut) {
  const Outcome outcome = run({kWell, "echo begin 0 >&3"});
  expectCounts(outcome, 0, 1, 1);
  expectText(outcome, "not all ranks have come to it");
}

TEST(Launcher, AddsToTheEnvironmentWhatIsNotThere) {
  expectCounts(run({"exec >&3; test $LAUNCHER_RANK = 0 && test $PATH != /nowhere && echo begin 0 "
                    "&& echo end 0 1",
                    "exec >&3; test $LAUNCHER_RANK = 1 && echo begin 0 && echo end 0 1"},
                   {"a"}),
               1, 0, 1);
}

}  // namespace
}  // namespace moeccl::gpu
