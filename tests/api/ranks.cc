// Starts ranks by job.h, and gives each a communicator.
#include "tests/api/ranks.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <csignal>
#include <cstdio>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "tests/job.h"

namespace moeccl::test {
namespace {

void note(Board& board, int rank, const char* text) {
  if (!board.failed.exchange(true))
    std::snprintf(board.text, sizeof(board.text), "rank %d: %s", rank, text);
}

thread_local std::vector<moecclGrid_t> gridsToAbort;  // where this rank fails

}  // namespace

int Job::nodeOf(int rank) const {
  int node = 0, first = 0;
  while (node < static_cast<int>(nodes.size()) && rank >= first + nodes[node])
    first += nodes[node++];
  return node;
}

std::string Job::nodeNameOf(int rank) const { return "node" + std::to_string(nodeOf(rank)); }

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

moecclComm_t join(const Job& job, Board& board, int rank, moecclConfig_t config) {
  if (rank == 0) {
    check(moecclGetUniqueId(&board.id));
    board.idReady = true;
  }
  while (!board.idReady) {
    if (board.failed) throw std::runtime_error("there is no id");  // and none will come
    std::this_thread::yield();
  }
  const std::string node = job.nodeNameOf(rank);
  config.nodeId = node.c_str();
  config.algorithms = job.algorithms.c_str();
  config.progressThread = job.progressThread;
  config.timeoutMs = job.timeoutMs;
  config.failureDetectionMs = job.failureDetectionMs;
  config.memory = job.memory;
  moecclComm_t comm = nullptr;
  check(moecclCommInitRankConfig(&comm, job.ranks, board.id, rank, &config));
  return comm;
}

void runParts(const Job& job, const PartFunction& part) {
  SCOPED_TRACE(job.text());
  // What processes use, where a run of the whole program wants to know it of one transport.
  const char* of = std::getenv("MOECCL_TEST_PROCESSES");
  setenv("MOECCL_TRANSPORT", job.ucx ? "ucx" : job.processes && of != nullptr ? of : "auto", 1);
  const Shared<Board> board;
  const auto noting = [&](int rank) {
    try {
      part(*board, rank);
    } catch (const std::exception& e) {
      note(*board, rank, e.what());
    }
  };
  const auto ended = [&](int rank, int status) {
    if (status != (job.dying.contains(rank) ? SIGKILL : 0))
      note(*board, rank, ("ended with status " + std::to_string(status)).c_str());
  };
  if (job.processes)
    asProcesses(job.ranks, noting, ended);
  else
    asThreads(job.ranks, noting);
  if (board->failed) ADD_FAILURE() << job.text() << ": " << board->text;
}

void runJob(const Job& job, const RankFunction& function) {
  runParts(job, [&](Board& board, int rank) {
    moecclComm_t comm = join(job, board, rank);
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
  });
}

void expectNamed(const Job& job, const std::string& text, int dead) {
  const auto nameOf = [](int rank) { return "rank " + std::to_string(rank); };
  const std::string name = nameOf(dead) + " on " + job.nodeNameOf(dead) + " is dead: its process ";
  EXPECT_NE(text.find(name), std::string::npos) << text;
  for (int rank = 0; rank < job.ranks; ++rank)
    EXPECT_FALSE(rank != dead && text.find(nameOf(rank)) != std::string::npos) << text;
}

}  // namespace moeccl::test
