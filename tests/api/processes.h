// Ranks that are processes and may end: started and judged.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <set>
#include <string>

#include "moeccl/moeccl.h"

namespace moeccl::test {

// What the ranks of a job share.
struct Board {
  std::atomic<bool> idReady;
  std::atomic<bool> rootEnded;
  moecclUniqueId id;
  std::atomic<int> ready, over;
  std::atomic<std::int64_t> killed;  // when, by nowMs()
};

std::int64_t nowMs();

// Ranks are on two nodes, node0 and node1, half of them each.
std::string nodeOf(int rank, int ranks);
// Meets the others over the board.
moecclComm_t join(Board& board, int rank, int ranks, moecclConfig_t config);

// Runs `part` on processes, one a rank. Those that are `dying` must end by SIGKILL, the others with
// success.
void runProcesses(int ranks, const std::set<int>& dying,
                  const std::function<void(Board& board, int rank)>& part);

// The text calls exactly this rank dead, and mentions no other.
void expectNamed(const std::string& text, int dead, int ranks);

}  // namespace moeccl::test
