#include "tests/api/ranks.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace moeccl::test {
namespace {

// What processes share: the id on its way from rank 0, and the first error.
struct Board {
  std::atomic<bool> idReady;
  moecclUniqueId id;
  std::atomic<bool> failed;
  char text[1024];
};

void note(Board& board, int rank, const char* text) {
  if (!board.failed.exchange(true))
    std::snprintf(board.text, sizeof(board.text), "rank %d: %s", rank, text);
}

thread_local std::vector<moecclGrid_t> gridsToAbort;  // where this rank fails

void runRank(const Job& job, int rank, Board& board, const RankFunction& function) {
  if (rank == 0) {
    check(moecclGetUniqueId(&board.id));
    board.idReady = true;
  }
  while (!board.idReady) {
    if (board.failed) return;  // rank 0 comes by no id any more
    std::this_thread::yield();
  }
  moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
  const std::string node = "node" + std::to_string(job.nodeOf(rank));
  config.nodeId = node.c_str();
  config.algorithms = job.algorithms.c_str();
  config.progressThread = job.progressThread;
  config.timeoutMs = job.timeoutMs;
  config.memory = job.memory;
  moecclComm_t comm = nullptr;
  check(moecclCommInitRankConfig(&comm, job.ranks, board.id, rank, &config));
  try {
    function(comm, rank);
  } catch (const Aborts&) {
    check(moecclCommAbort(comm));
    return;
  } catch (const Aborted&) {
    return;
  } catch (const std::exception& e) {
    note(board, rank, e.what());  // before others fail of what follows
    for (moecclGrid_t grid : gridsToAbort) moecclGridAbort(grid);
    moecclCommAbort(comm);
    return;
  }
  check(moecclCommDestroy(comm));
}

void runNoting(const Job& job, int rank, Board& board, const RankFunction& function) {
  try {
    runRank(job, rank, board, function);
  } catch (const std::exception& e) {
    note(board, rank, e.what());
  }
}

void runProcesses(const Job& job, Board& board, const RankFunction& function) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < job.ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      runNoting(job, rank, board, function);
      _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    children.push_back(child);
  }
  for (int rank = 0; rank < job.ranks; ++rank) {
    int status = 0;
    waitpid(children[rank], &status, 0);
    if (status != 0) note(board, rank, ("ended with status " + std::to_string(status)).c_str());
  }
}

}  // namespace

int Job::nodeOf(int rank) const {
  int node = 0, first = 0;
  while (node < static_cast<int>(nodes.size()) && rank >= first + nodes[node])
    first += nodes[node++];
  return node;
}

std::string Job::text() const {
  std::ostringstream out;
  out << ranks << " ranks ("
      << (processes ? "processes"
          : ucx     ? "threads over UCX"
                    : "threads")
      << ")";
  for (size_t i = 0; i < nodes.size(); ++i) out << (i == 0 ? ", nodes " : "+") << nodes[i];
  if (!algorithms.empty()) out << ", " << algorithms;
  if (progressThread) out << ", progress thread";
  return out.str();
}

moecclGrid_t makeGrid(moecclComm_t comm, const moecclGridShape_t& shape) {
  moecclGrid_t grid = nullptr;
  check(moecclGridCreate(comm, shape, &grid), comm);
  gridsToAbort.push_back(grid);
  return grid;
}

void runJob(const Job& job, const RankFunction& function) {
  SCOPED_TRACE(job.text());
  // What processes use, where a run of the whole program wants to know it of one transport.
  const char* of = std::getenv("MOECCL_TEST_PROCESSES");
  setenv("MOECCL_TRANSPORT", job.ucx ? "ucx" : job.processes && of != nullptr ? of : "auto", 1);
  void* memory =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  Board& board = *new (memory) Board{};
  if (job.processes) {
    runProcesses(job, board, function);
  } else {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < job.ranks; ++rank)
      threads.emplace_back([&, rank] { runNoting(job, rank, board, function); });
    for (std::thread& thread : threads) thread.join();
  }
  if (board.failed) ADD_FAILURE() << job.text() << ": " << board.text;
  munmap(memory, sizeof(Board));
}

}  // namespace moeccl::test
