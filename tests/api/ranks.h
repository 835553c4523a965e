// Starts the ranks of a job inside a test: as threads of this process (loopback, or UCX when asked
// for) or as processes of their own.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "moeccl/moeccl.h"
#include "tests/api/results.h"

namespace moeccl::test {

struct Job {
  int ranks = 1;
  // Node sizes; empty: one node. Ranks are numbered node by node.
  std::vector<int> nodes;
  std::string algorithms;
  bool processes = false;  // else threads
  bool ucx = false;        // all it finds, by MOECCL_TRANSPORT; else what the library chooses
  bool progressThread = false;
  int64_t timeoutMs = 60000;
  moecclMemory_t memory = moecclMemoryHost;

  int nodeOf(int rank) const;
  std::string text() const;
};

// What a rank does; anything thrown, and any gtest failure, fails the test. In processes only
// failures come back, not values.
using RankFunction = std::function<void(moecclComm_t comm, int rank)>;

// Thrown by a rank that wants its communicator aborted; no failure of the test.
struct Aborts {};
// Thrown by a rank that has aborted it already.
struct Aborted {};

// In a rank's function, which destroys the grid; where it throws, the grid is aborted, so that no
// peer waits for this rank.
moecclGrid_t makeGrid(moecclComm_t comm, const moecclGridShape_t& shape);

// Makes a communicator on every rank, calls the function, destroys the communicator.
void runJob(const Job& job, const RankFunction& function);

}  // namespace moeccl::test
