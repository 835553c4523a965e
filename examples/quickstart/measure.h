// One row of the table: a layer under one schedule and one algorithm of its
// exchanges, run, timed, counted
// and checked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "examples/moe_reference.h"
#include "options.h"

namespace quickstart {

// What every row computes. The same on all ranks but for `input` and `expected`, which are those of
// the caller's MP group.
struct Problem {
  moecclGridShape_t grid{};
  moe_reference::Layer layer;
  std::vector<double> input;  // [tokens][M]
  moe_reference::Result expected;
};

struct Row {
  moecclSchedule_t schedule;
  std::string algorithm;
  std::vector<double> seconds;     // per iteration, of the slowest rank
  std::vector<double> sentByRank;  // bytes per iteration that the rank's node has sent
  double largestError = 0;         // over all ranks and passes, NaN where a value was
  std::vector<std::string> wrong;  // one text for each rank whose results were
};

// Says what and why, and ends the process. Peers are told by the launcher, or notice by themselves.
[[noreturn]] void fail(const std::string& what, moecclComm_t comm);

// Returns when all ranks have called it.
void barrier(moecclComm_t comm);

// Collective over `world`; every rank gets the whole row. Each pass is checked: every element of
// the output, the loads of the experts, the dropped choices and the auxiliary loss. The caller's
// node is counted from a barrier before the first timed pass to one after the last. Throws
// std::invalid_argument, on all ranks alike, when there is no such algorithm.
Row measure(moecclComm_t world, const Problem& problem, const Options& options,
            moecclSchedule_t schedule, const std::string& algorithm);

const char* nameOf(moecclSchedule_t schedule);

// Bytes that the caller's node has sent so far; 0 without a counter.
std::int64_t sentSoFar(const Options& options);

}  // namespace quickstart
