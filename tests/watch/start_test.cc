// Every rank of three is killed after each message that its process sends in the set-up, those of
// the rendezvous' service included. The others name it, and do not wait for a timeout.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <string>

#include "src/bootstrap/rendezvous.h"
#include "src/watch/mesh_watch.h"
#include "tests/bootstrap/support.h"
#include "tests/job.h"
#include "tests/sanitized.h"

namespace {

std::atomic<int> messagesLeft = 0;  // of this process, which is killed after the last; 0: no end

}  // namespace

// In place of libc's: what the library sends in the set-up goes through here.
extern "C" ssize_t send(int fd, const void* data, std::size_t bytes, int flags) {
  const ssize_t sent = syscall(SYS_sendto, fd, data, bytes, flags, nullptr, 0);
  if (sent > 0 && messagesLeft > 0 && --messagesLeft == 0) kill(getpid(), SIGKILL);
  return sent;
}

namespace moeccl::test {
namespace {

constexpr int kRanks = 3;
constexpr std::int64_t kLong = 60'000, kShort = 300;

// What the processes share.
struct Board {
  std::atomic<bool> open;
  moecclUniqueId id;
  std::atomic<int> ready, over;
  std::atomic<bool> complete[kRanks];  // its set-up
  moecclResult_t result[kRanks];
  char text[kRanks][512];
};

void setUp(Board& board, int rank, int victim, std::int64_t timeoutMs) {
  if (rank == 0) {
    board.id = makeUniqueId();
    board.open = true;
  }
  if (!eventually([&] { return board.open.load(); })) throw std::runtime_error("no id");
  const Topology topology(std::vector<int>{0, 0, 1});
  MeshOptions options;
  options.hosts = {"host0", "host0", "host1"};
  options.failureDetectionMs = 3000;
  options.timeoutMs = timeoutMs;
  const auto oob = join(board.id, kRanks, rank, timeoutMs);
  exchangeValue(*oob, rank);
  const auto watch = makeMeshWatch(*oob, topology, options);
  exchangeValue(*oob, rank);
  oob->finish();
  messagesLeft = 0;
  board.complete[rank] = true;
  ++board.ready;
  // Later ends are for the watch to tell.
  for (const TimePoint end = afterMs(kLong); board.ready < kRanks && !isPast(end); usleep(1000)) {
    for (const Loss& loss : watch->losses()) {
      if (loss.left) continue;
      EXPECT_EQ(loss.rank, victim) << loss.why;
      return;
    }
  }
}

void runRank(Board& board, int rank, int victim, int messages) {
  if (rank == victim) messagesLeft = messages;
  // A victim that has only greeted has not joined, and is waited for; but for the one that serves.
  const std::int64_t timeoutMs = messages == 1 && victim != 0 ? kShort : kLong;
  const Outcome outcome = outcomeOf([&] { setUp(board, rank, victim, timeoutMs); });
  board.result[rank] = outcome.result;
  std::snprintf(board.text[rank], sizeof board.text[rank], "%s", outcome.text.c_str());
  // The one that serves tells late ranks too what has happened, as long as it lives.
  ++board.over;
  eventually([&] { return board.over >= kRanks - 1; });
}

void expectNamed(const Board& board, int rank, int victim, int messages) {
  const Outcome outcome{board.result[rank], board.text[rank]};
  const std::string name = "rank " + std::to_string(victim);
  if (board.complete[rank]) {
    EXPECT_EQ(outcome.result, moecclSuccess) << outcome.text;
  } else if (messages == 1 && victim != 0) {
    expectFailure(outcome, moecclTimeout, name + " of 3 has not arrived");
  } else if (outcome.result == moecclSystemError && victim == 0) {
    // Who has not been accepted knows nobody's name yet.
    expectFailure(outcome, moecclSystemError, "nobody answers for this id");
  } else {
    EXPECT_EQ(outcome.result, moecclRemoteError) << outcome.text;
    EXPECT_TRUE(outcome.text.find(name + " (") != std::string::npos ||
                outcome.text.find(name + " on host") != std::string::npos ||
                outcome.text.find("process that made the id (") != std::string::npos)
        << outcome.text;
  }
}

// Returns whether the victim sent so many.
bool killAfter(int victim, int messages) {
  SCOPED_TRACE("rank " + std::to_string(victim) + " after " + std::to_string(messages) +
               " messages");
  const Shared<Board> board;
  bool killed = false;
  asProcesses(
      kRanks, [&](int rank) { runRank(*board, rank, victim, messages); },
      [&](int rank, int status) {
        if (rank == victim && status == SIGKILL)
          killed = true;
        else
          EXPECT_EQ(status, 0) << "rank " << rank;
      });
  for (int rank = 0; rank < kRanks; ++rank)
    if (rank != victim || !killed) expectNamed(*board, rank, victim, messages);
  return killed;
}

class Start : public testing::TestWithParam<int> {};

TEST_P(Start, AVictimIsNamedWhateverItHasSaid) {
#ifdef MOECCL_THREAD_SANITIZED
  GTEST_SKIP() << "the thread sanitizer allows no threads in a child that was forked";
#endif
  int messages = 1;
  while (killAfter(GetParam(), messages) && !HasFailure()) ++messages;
  // A greeting, a wish to join, and its part of each all-gather.
  EXPECT_GT(messages, 10);
}

INSTANTIATE_TEST_SUITE_P(Victims, Start, testing::Range(0, kRanks));

}  // namespace
}  // namespace moeccl::test
