// A layer, its tokens and what must come out, and how to run it on ranks that are threads.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "examples/moe_reference.h"
#include "moeccl/moe.h"
#include "tests/api/ranks.h"

namespace moeccl::test {

enum class Tokens {
  random,    // all different
  repeated,  // few different ones, as in text
  tied,      // small whole numbers: logits are exact, and often equal between experts
};

struct Problem {
  std::string name;
  moecclGridShape_t grid{1, 1, 1, moecclOrderEspEp};
  std::int64_t tokens = 12, embedding = 8, hidden = 12, experts = 12, choices = 2;
  double capacityFactor = 1.0;
  std::int64_t capacityGroups = 0;
  std::int64_t chunks = 0;
  moecclMoeActivation_t activation = moecclMoeGelu;
  moecclMoeGate_t gate = moecclGateSoftmax;
  bool training = false;  // gates draw random numbers
  std::int64_t step = 5;
  Tokens data = Tokens::random;
  moecclDataType_t datatype = moecclFloat32;
  bool biases = true;
  bool dropless = false;  // then capacity counts for nothing
  std::int64_t tokenRouting = 0;
  std::vector<int> nodes = {};  // how many ranks are on each; empty: all on one
  std::int64_t residual = 0;
  bool renormalize = false;
  std::int64_t minCapacity = 0;
  // Expert e adds 1 to element e of what it is given back, and does nothing else: the output shows
  // which choices had a place. Needs embedding >= experts.
  bool probe = false;
  double hotGate =
      0;  // added to the gate's column of expert 1, against tokens shifted to be positive
  unsigned seed = 1;

  std::string text() const;
  int ranks() const { return grid.nEp * grid.nEsp; }
  int batches() const { return ranks() / grid.nMp; }
};

// A whole layer, and per MP group the tokens and what the reference makes of them.
struct Solved {
  moe_reference::Layer layer;
  std::vector<std::vector<double>> inputs;
  std::vector<moe_reference::Result> expected;
};
Solved solve(const Problem& problem);

// Layers in which every grid of a named few, gate, number of tokens and of choices, capacity, kind
// of capacity groups, residual branch, kind of data, activation, datatype and load meets every
// value of each of the others. Behind them each gate on 16 ranks, most choices dropped.
std::vector<Problem> layers();
// The same on every grid with EP and ESP groups of 1 to 4 ranks and MP groups of 1 to 4 or all, and
// on larger ones.
std::vector<Problem> layersOnAllGrids();

// How far from the reference, which computes in float64, a result may be, as
// moe_reference::largestError.
double toleranceOf(moecclDataType_t datatype);

// What is random about a batch in training.
moe_reference::Chance chanceOf(const Problem& problem, int batch);

// MP groups of two that cross the ESP groups of three.
Problem six(const std::string& name);

// Elements of 16 bits through every gate, with and without capacity and residual branch.
std::vector<Problem> narrowProblems();
// Capacities, choices and batches at their limits, on that grid and on one whose MP group has all
// ranks, and hardly any tokens on several grids.
std::vector<Problem> hardProblems();
// S1 in chunks through every gate, of one capacity group and of several, some of them nothing but
// padding; borders of chunks cut sequences. Pairwise as layers().
std::vector<Problem> chunkedProblems();
// Those that cut tokens in chunks, of the ones that problems can follow.
std::vector<moecclSchedule_t> chunkedSchedulesOf(const Problem& problem);
// Without capacity; also by token routing.
std::vector<Problem> chunkedDroplessProblems();
// Every `stride`-th problem, or the rest: layers show a sanitizer much the same code.
std::vector<Problem> every(std::size_t stride, const std::vector<Problem>& problems, bool rest);
// Layers whose rows go by token routing, on one node and several, pairwise as layers().
std::vector<Problem> routedProblems();
// The hard one of that name, the first of several.
Problem hardProblem(const std::string& name);

// The name of a test's case, and what --gtest_list_tests says of it.
std::string nameOfCase(const Problem& problem);
void PrintTo(const Problem& problem, std::ostream* out);

// One rank's results.
struct Outcome {
  std::vector<double> output;
  double auxiliaryLoss = 0, imbalance = 0;
  std::int64_t droppedChoices = 0;
  std::vector<std::int64_t> assigned, kept;
};

// Throws where a rank's outcome is not what the reference says.
void checkSolved(const Problem& problem, const Solved& solved, int rank, const Outcome& outcome);

struct Run {
  moecclSchedule_t schedule = moecclScheduleAuto;
  std::string algorithms = "";
  bool ownStream = false;
  bool inPlace = false;
  bool ucx = false, processes = false, progressThread = false;  // as in Job
  int forwards = 2;                                             // the last one counts
};

// A job of threads with as many ranks as the grid needs.
Job jobOf(const Problem& problem);

// The schedules that are offered for the problem's grid and capacity groups, and their names.
std::vector<moecclSchedule_t> schedulesOf(const Problem& problem);
const char* nameOf(moecclSchedule_t schedule);

// What follows is for tests that have GoogleTest (run_layer.cc).

// Runs the layer, and fails the test where a rank's outcome is not what the reference says. The
// outcomes by rank; of processes none come back.
std::vector<Outcome> runLayer(const Problem& problem, const Solved& solved, const Run& run);

// All of them against the reference and against each other, their statistics to the last bit.
void expectAllSchedules(const Problem& problem);

}  // namespace moeccl::test
