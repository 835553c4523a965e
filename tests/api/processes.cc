#include "tests/api/processes.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/api/results.h"

namespace moeccl::test {

std::int64_t nowMs() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::milliseconds(1);
}

std::string nodeOf(int rank, int ranks) { return "node" + std::to_string(rank / (ranks / 2)); }

moecclComm_t join(Board& board, int rank, int ranks, moecclConfig_t config) {
  if (rank == 0) {
    check(moecclGetUniqueId(&board.id));
    board.idReady = true;
  }
  while (!board.idReady) {
    if (board.rootEnded) throw std::runtime_error("rank 0 has ended without an id");
    std::this_thread::yield();
  }
  const std::string node = nodeOf(rank, ranks);
  config.nodeId = node.c_str();
  config.timeoutMs = 60000;
  moecclComm_t comm = nullptr;
  check(moecclCommInitRankConfig(&comm, ranks, board.id, rank, &config));
  return comm;
}

void runProcesses(int ranks, const std::set<int>& dying,
                  const std::function<void(Board& board, int rank)>& part) {
  void* const memory =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  Board& board = *new (memory) Board{};
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      try {
        part(board, rank);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
      _exit(testing::Test::HasFailure());
    }
    children.push_back(child);
  }
  for (int rank = 0; rank < ranks; ++rank) {
    int status = 0;
    waitpid(children[static_cast<std::size_t>(rank)], &status, 0);
    if (rank == 0) board.rootEnded = true;
    EXPECT_EQ(status, dying.contains(rank) ? SIGKILL : 0) << "rank " << rank;
  }
  munmap(memory, sizeof(Board));
}

void expectNamed(const std::string& text, int dead, int ranks) {
  const std::string name =
      "rank " + std::to_string(dead) + " on " + nodeOf(dead, ranks) + " is dead: its process ";
  EXPECT_NE(text.find(name), std::string::npos) << text;
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == dead) continue;
    EXPECT_EQ(text.find("rank " + std::to_string(rank)), std::string::npos) << text;
  }
}

}  // namespace moeccl::test
