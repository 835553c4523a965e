#include "tests/exec/transport_world.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>
#include <thread>

namespace moeccl::test {
namespace {

constexpr int kMostRanks = 32;
constexpr std::size_t kMostAddressBytes = 8192;
constexpr auto kPatience = std::chrono::seconds(60);
using Clock = std::chrono::steady_clock;

struct Died {};

}  // namespace

class Board {
 public:
  void meet(int count) {
    const int meeting = meetings_.load();
    if (arrived_.fetch_add(1) + 1 == count) {
      arrived_.store(0);
      meetings_.fetch_add(1);
    }
    while (meetings_.load() == meeting) std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  void put(int rank, const Transport::Address& address) {
    ASSERT_LE(address.size(), kMostAddressBytes);
    std::memcpy(bytes_[rank].data(), address.data(), address.size());
    sizes_[rank] = address.size();
  }
  Transport::Address get(int rank) const {
    return {bytes_[rank].data(), bytes_[rank].data() + sizes_[rank]};
  }

 private:
  std::atomic<int> arrived_ = 0, meetings_ = 0;
  std::array<std::size_t, kMostRanks> sizes_{};
  std::array<std::array<std::byte, kMostAddressBytes>, kMostRanks> bytes_{};
};

void Member::meet(int count) { board_.meet(count == 0 ? ranks() : count); }

void Member::die() {
  if (isProcess_) kill(getpid(), SIGKILL);
  transport.close(true, 0);  // while the transfers in flight still exist
  throw Died();
}

namespace {

void runRank(const Kind& kind, int rank, int ranks, Board& board,
             const std::function<void(Member&)>& body) {
  try {
    const std::unique_ptr<Transport> transport = kind.make(rank, ranks);
    board.put(rank, transport->address());
    board.meet(ranks);
    std::vector<Transport::Address> addresses;
    for (int peer = 0; peer < ranks; ++peer) addresses.push_back(board.get(peer));
    transport->connect(addresses);
    board.meet(ranks);
    Member member(*transport, board, kind.processes);
    body(member);
    transport->close(false, 20000);
  } catch (const Died&) {
  } catch (const std::exception& error) {
    ADD_FAILURE() << "rank " << rank << ": " << error.what();
  }
}

std::string runThreads(const Kind& kind, int ranks, const std::function<void(Member&)>& body) {
  Board board;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] { runRank(kind, rank, ranks, board, body); });
  for (std::thread& thread : threads) thread.join();
  return {};
}

// The parent never starts a transport, so that a fork finds the libraries untouched.
std::string runProcesses(const Kind& kind, int ranks, const std::function<void(Member&)>& body) {
  void* const memory =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(memory, MAP_FAILED);
  Board& board = *new (memory) Board;
  // UCX speaks on stdout, where the test speaks too.
  std::FILE* const output = std::tmpfile();
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      dup2(fileno(output), STDOUT_FILENO);
      dup2(fileno(output), STDERR_FILENO);
      runRank(kind, rank, ranks, board, body);
      std::fflush(nullptr);
      _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    children.push_back(child);
  }
  // In the order of ranks, so one that dies stays a zombie while a lower one lives.
  const auto deadline = Clock::now() + kPatience;
  for (std::size_t rank = 0; rank < children.size(); ++rank) {
    int status = 0;
    pid_t ended = 0;
    while (ended == 0 && Clock::now() < deadline) {
      ended = waitpid(children[rank], &status, WNOHANG);
      if (ended == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    if (ended == 0) {
      ADD_FAILURE() << "rank " << rank << " hangs";
      kill(children[rank], SIGKILL);
      waitpid(children[rank], &status, 0);
      continue;
    }
    const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    EXPECT_TRUE(killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0))
        << "rank " << rank << " ended with status " << status;
  }
  munmap(memory, sizeof(Board));
  std::string text;
  std::rewind(output);
  for (int c; (c = std::fgetc(output)) != EOF;) text.push_back(static_cast<char>(c));
  std::fclose(output);
  return text;
}

}  // namespace

std::string runJob(const Kind& kind, int ranks, const std::function<void(Member&)>& body) {
  return (kind.processes ? runProcesses : runThreads)(kind, ranks, body);
}

Probe::Probe() {
  done = [](Transfer* self, TransferStatus status, std::size_t bytes) {
    auto* probe = static_cast<Probe*>(self);
    ++probe->completions;
    probe->status = status;
    probe->arrived = bytes;
  };
}

bool progressUntil(Transport& transport, const std::function<bool()>& condition, int milliseconds) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(milliseconds);
  while (!condition()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    if (!transport.progress()) transport.wait(static_cast<int>(std::min<std::int64_t>(left, 100)));
  }
  return true;
}

bool finish(Transport& transport, std::initializer_list<const Probe*> probes, int milliseconds) {
  return progressUntil(
      transport,
      [&] {
        return std::ranges::all_of(probes, [](const Probe* p) { return p->completions > 0; });
      },
      milliseconds);
}

std::vector<std::uint8_t> pattern(std::uint64_t seed, std::size_t bytes) {
  std::vector<std::uint8_t> data(bytes);
  std::uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (std::size_t i = 0; i < bytes; ++i) {
    if (i % 8 == 0) state = state * 6364136223846793005u + 1442695040888963407u;
    data[i] = static_cast<std::uint8_t>(state >> (8 * (i % 8)));
  }
  return data;
}

Tag tagOf(int source, std::uint32_t call) {
  return makeTag({.comm = 1,
                  .call = call,
                  .sequence = call >> kCallBits,
                  .source = static_cast<std::uint32_t>(source)});
}

}  // namespace moeccl::test
