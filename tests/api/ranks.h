// Starts the ranks of a job inside a test: as threads of this process (loopback, or UCX when asked
// for) or as processes of their own, which may end.
#pragma once

#include <atomic>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "moeccl/moeccl.h"
#include "tests/api/results.h"

namespace moeccl::test {

struct Job {
  int ranks = 1;
  // Node sizes; empty: one node. Ranks are numbered node by node.
  std::vector<int> nodes = {};
  std::string algorithms = {};
  bool processes = false;  // else threads
  bool ucx = false;        // all it finds, by MOECCL_TRANSPORT; else what the library chooses
  bool progressThread = false;
  int64_t timeoutMs = 60000;
  int64_t failureDetectionMs = 0;
  moecclMemory_t memory = moecclMemoryHost;
  std::set<int> dying = {};  // processes that must end by SIGKILL; the others end with success

  int nodeOf(int rank) const;
  std::string nodeNameOf(int rank) const;
  std::string text() const;
};

// What the ranks of a job share.
struct Board {
  std::atomic<bool> idReady;
  moecclUniqueId id;
  std::atomic<bool> failed;
  char text[1024];  // the first error
  // For what a test counts.
  std::atomic<int> ready, over;
};

// What a rank does that makes its communicator itself. Anything thrown, and any gtest failure,
// fails the test. In processes only failures come back, not values.
using PartFunction = std::function<void(Board& board, int rank)>;
void runParts(const Job& job, const PartFunction& part);
// Meets the other ranks of the job. `config`: what the job does not say.
moecclComm_t join(const Job& job, Board& board, int rank,
                  moecclConfig_t config = MOECCL_CONFIG_INITIALIZER);

// The same with a communicator.
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

// The text calls exactly this rank of the job dead, and mentions no other.
void expectNamed(const Job& job, const std::string& text, int dead);

}  // namespace moeccl::test
