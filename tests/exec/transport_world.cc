// Connects each transport among threads or processes.
#include "tests/exec/transport_world.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <thread>

#include "tests/job.h"

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
  }
}

std::string runThreads(const Kind& kind, int ranks, const std::function<void(Member&)>& body) {
  Board board;
  asThreads(ranks, [&](int rank) { runRank(kind, rank, ranks, board, body); });
  return {};
}

// The parent never starts a transport, so that a fork finds the libraries untouched.
std::string runProcesses(const Kind& kind, int ranks, const std::function<void(Member&)>& body) {
  const Shared<Board> board;
  // UCX speaks on stdout, where the test speaks too.
  std::FILE* const output = std::tmpfile();
  const auto part = [&](int rank) {
    dup2(fileno(output), STDOUT_FILENO);
    dup2(fileno(output), STDERR_FILENO);
    runRank(kind, rank, ranks, *board, body);
  };
  const auto ended = [](int rank, int status) {
    EXPECT_TRUE(status == 0 || status == SIGKILL)
        << "rank " << rank << " ended with status " << status;
  };
  asProcesses(ranks, part, ended, kPatience);
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
