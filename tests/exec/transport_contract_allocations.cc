// Once warm, a message costs no allocation of ours. (UCX's own pools do not use operator new.)
#include <algorithm>
#include <cstdlib>
#include <new>

#include "tests/exec/transport_contract.h"
#include "tests/sanitized.h"

// Sanitizers bring operators of their own.
#ifdef MOECCL_SANITIZED
#define MOECCL_OWN_OPERATORS 0
#else
#define MOECCL_OWN_OPERATORS 1
#endif

namespace {

thread_local std::int64_t allocations = 0;
thread_local bool exhausted = false;  // there is no memory

#if MOECCL_OWN_OPERATORS
void* counted(std::size_t bytes) {
  ++allocations;
  if (void* memory = exhausted ? nullptr : std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
#endif

}  // namespace

#if MOECCL_OWN_OPERATORS
void* operator new(std::size_t bytes) { return counted(bytes); }
void* operator new[](std::size_t bytes) { return counted(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
#endif

namespace moeccl::test {
namespace {

constexpr std::size_t kSizes[] = {0, 100, 4000, 10000, 300000};

TEST_P(TransportContract, NoAllocationPerMessage) {
  if (!MOECCL_OWN_OPERATORS) GTEST_SKIP() << "sanitizers replace operator new";
  run(2, [](Member& me) {
    std::vector<std::uint8_t> data(300000);
    const auto round = [&](std::uint32_t call, bool expected) {
      Probe probes[std::size(kSizes)];
      const auto start = [&] {
        for (std::size_t i = 0; i < std::size(kSizes); ++i) {
          const Tag tag = tagOf(0, call + static_cast<std::uint32_t>(i));
          if (me.rank() == 0)
            me.transport.send(1, tag, data.data(), kSizes[i], &probes[i]);
          else
            me.transport.recv(0, tag, data.data(), kSizes[i], &probes[i]);
        }
      };
      const bool first = expected == (me.rank() == 1);
      if (first) start();
      me.meet();
      if (!first) start();
      for (const Probe& probe : probes)
        while (probe.completions == 0)
          if (!me.transport.progress()) me.transport.wait(100);
      // Connections beside the first come about while others carry data already.
      me.transport.progress();
      me.meet();
    };
    // When everything has been there once is the kernel's business too: of the rounds, so many must
    // follow one another without an allocation.
    constexpr int kRounds = 200, kQuiet = 50;
    int quiet = 0, longest = 0;
    for (int i = 0; i < kRounds; ++i) {
      const std::int64_t before = allocations;
      round(static_cast<std::uint32_t>(i) * 10, i % 2 == 0);
      quiet = allocations == before ? quiet + 1 : 0;
      longest = std::max(longest, quiet);
    }
    EXPECT_GE(longest, kQuiet) << "rank " << me.rank();
    const std::int64_t before = allocations;
    // The counter counts.
    data = std::vector<std::uint8_t>(10);
    EXPECT_GT(allocations, before);
  });
}

TEST_P(TransportContract, MessagesArriveWithoutMemoryForThem) {
  if (!MOECCL_OWN_OPERATORS) GTEST_SKIP() << "sanitizers replace operator new";
  run(2, [](Member& me) {
    constexpr std::size_t kMost = 300000;
    std::vector<std::uint8_t> data(kMost, 7);
    // The first meeting of two ranks may cost what it likes.
    for (const bool memory : {true, false}) {
      Probe probes[std::size(kSizes)];
      if (me.rank() == 1) me.meet();
      std::vector<std::uint8_t> received[std::size(kSizes)];
      for (auto& each : received) each.resize(kMost);
      exhausted = !memory;
      for (std::size_t i = 0; i < std::size(kSizes); ++i) {
        const Tag tag = tagOf(0, static_cast<std::uint32_t>(memory ? i : 10 + i));
        if (me.rank() == 0)
          me.transport.send(1, tag, data.data(), kSizes[i], &probes[i]);
        else
          me.transport.recv(0, tag, received[i].data(), kSizes[i], &probes[i]);
      }
      exhausted = false;
      if (me.rank() == 0) me.meet();
      for (std::size_t i = 0; i < std::size(kSizes); ++i) {
        while (probes[i].completions == 0)
          if (!me.transport.progress()) me.transport.wait(100);
        EXPECT_EQ(probes[i].status, TransferStatus::ok);
        if (me.rank() == 1) {
          EXPECT_EQ(std::ranges::count(received[i], 7), static_cast<std::ptrdiff_t>(kSizes[i]));
        }
      }
      me.meet();
    }
  });
}

}  // namespace
}  // namespace moeccl::test
