// Beginnings, ends and waiting.
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/exec/transport_contract.h"

namespace moeccl::test {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMiB = std::size_t{1} << 20;
// Much longer than it takes to notice that a peer has died, much shorter than a wait for nothing.
constexpr int kNoticed = 8000;

std::int64_t millisecondsSince(Clock::time_point start) {
  return std::chrono::duration_cast<milliseconds>(Clock::now() - start).count();
}

// Messages between two ranks, once, so that they know each other.
void acquaint(Member& me, int a, int b) {
  if (me.rank() != a && me.rank() != b) return;
  const int peer = me.rank() == a ? b : a;
  std::uint32_t out = 1, in = 0;
  Probe send, recv;
  me.transport.recv(peer, tagOf(peer, 99), &in, sizeof in, &recv);
  me.transport.send(peer, tagOf(me.rank(), 99), &out, sizeof out, &send);
  ASSERT_TRUE(finish(me.transport, {&send, &recv}));
}

TEST_P(TransportContract, WakeFromAnotherThread) {
  run(1, [](Member& me) {
    const auto start = Clock::now();
    std::thread other([&] {
      std::this_thread::sleep_for(milliseconds(50));
      me.transport.wake();
    });
    me.transport.progress();
    me.transport.wait(20000);
    EXPECT_LT(millisecondsSince(start), 5000);
    other.join();
    // A wake that comes before the wait is not lost.
    me.transport.wake();
    me.transport.wait(20000);
    EXPECT_LT(millisecondsSince(start), 5000);
  });
}

TEST_P(TransportContract, WaitEndsByItself) {
  run(1, [](Member& me) {
    while (me.transport.progress()) {
    }
    const auto start = Clock::now();
    me.transport.wait(30);
    EXPECT_LT(millisecondsSince(start), 5000);
  });
}

TEST_P(TransportContract, ArrivingMessageEndsTheWait) {
  run(2, [](Member& me) {
    std::uint32_t call = 0;
    for (std::size_t bytes : {std::size_t{0}, std::size_t{8}, std::size_t{50000}, 2 * kMiB}) {
      std::vector<std::uint8_t> data(bytes);
      Probe probe;
      const auto start = Clock::now();
      if (me.rank() == 0) {
        me.transport.recv(1, tagOf(1, call), data.data(), bytes, &probe);
      } else {
        std::this_thread::sleep_for(milliseconds(60));
        me.transport.send(0, tagOf(1, call), data.data(), bytes, &probe);
      }
      while (probe.completions == 0)
        if (!me.transport.progress()) me.transport.wait(20000);
      EXPECT_EQ(probe.status, TransferStatus::ok);
      EXPECT_LT(millisecondsSince(start), 5000) << bytes << " bytes";
      ++call;
    }
  });
}

// What a full connection has taken of a send that is done leaves without its sender.
TEST_P(TransportContract, SendsThatAreDoneNeedNothingMoreOfTheirRank) {
  constexpr std::uint32_t kMost = 6000;
  constexpr std::size_t kBytes = 4000;
  // On a machine with much else to do each send may take milliseconds.
  const auto enough = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  struct Counts {
    std::atomic<std::uint32_t> done = 0, sent = 0;
  };
  void* const shared =
      mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto& counts = *new (shared) Counts;
  run(2, [&counts, enough](Member& me) {
    std::vector<std::uint8_t> data(kBytes);
    const auto probes = std::make_unique<Probe[]>(kMost);
    acquaint(me, 0, 1);
    if (me.rank() == 0) {
      std::uint32_t sent = 0;
      while (sent < kMost && std::chrono::steady_clock::now() < enough) {
        me.transport.send(1, tagOf(0, sent), data.data(), kBytes, &probes[sent]);
        const Probe& last = probes[sent++];
        if (!progressUntil(
                me.transport, [&] { return last.completions == 1; }, 100))
          break;
        counts.done = sent;
      }
      counts.sent = sent;
      me.meet();
      me.meet();
      for (std::uint32_t i = 0; i < sent; ++i) EXPECT_TRUE(finish(me.transport, {&probes[i]}));
      return;
    }
    me.meet();
    std::uint32_t received = 0;
    const auto receive = [&] {
      me.transport.recv(0, tagOf(0, received), data.data(), kBytes, &probes[received]);
      return finish(me.transport, {&probes[received++]}, kNoticed);
    };
    while (received < counts.done) ASSERT_TRUE(receive()) << received << " of " << counts.done;
    me.meet();
    if (received < counts.sent) {
      EXPECT_TRUE(receive());
    }
  });
  munmap(shared, sizeof counts);
}

// What was sent before a sender closed arrives at a rank that is late, and the early ones wait.
TEST_P(TransportContract, CloseWaitsForTheSlow) {
  void* const shared = mmap(nullptr, sizeof(std::atomic<bool>), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  for (int slow : {0, 1, 2}) {
    std::atomic<bool>& closes = *new (shared) std::atomic<bool>(false);
    run(3, [slow, &closes](Member& me) {
      std::vector<std::uint8_t> small(1000), large(kMiB);
      Probe sends[2], recvs[4];
      if (me.rank() != slow) {
        me.transport.send(slow, tagOf(me.rank(), 1), small.data(), small.size(), &sends[0]);
        me.transport.send(slow, tagOf(me.rank(), 2), large.data(), large.size(), &sends[1]);
        const auto start = Clock::now();
        me.transport.close(false, 20000);
        EXPECT_TRUE(closes);
        EXPECT_LT(millisecondsSince(start), 10000);
        for (const Probe& send : sends) {
          EXPECT_EQ(send.completions, 1);
          EXPECT_EQ(send.status, TransferStatus::ok);
        }
        return;
      }
      std::this_thread::sleep_for(milliseconds(200));
      int at = 0;
      for (int peer = 0; peer < 3; ++peer) {
        if (peer == slow) continue;
        me.transport.recv(peer, tagOf(peer, 1), small.data(), small.size(), &recvs[at++]);
        me.transport.recv(peer, tagOf(peer, 2), large.data(), large.size(), &recvs[at++]);
      }
      for (const Probe& recv : recvs) {
        ASSERT_TRUE(finish(me.transport, {&recv}));
        EXPECT_EQ(recv.status, TransferStatus::ok);
      }
      closes = true;
      me.transport.close(false, 20000);
    });
  }
  munmap(shared, sizeof(std::atomic<bool>));
}

TEST_P(TransportContract, CloseIsBoundedByItsTime) {
  runDeadly(2, [](Member& me) {
    if (me.rank() == 0) {
      const auto start = Clock::now();
      me.transport.close(false, 300);
      EXPECT_GE(millisecondsSince(start), 290);
      EXPECT_LT(millisecondsSince(start), 5000);
    }
    me.meet();
  });
}

TEST_P(TransportContract, CloseCancelsWhatIsLeft) {
  runDeadly(2, [](Member& me) {
    if (me.rank() == 0) {
      std::vector<std::uint8_t> data(8 * kMiB), in(100);
      Probe send, recv, after;
      me.transport.recv(1, tagOf(1, 1), in.data(), in.size(), &recv);
      me.transport.send(1, tagOf(0, 1), data.data(), data.size(), &send);
      me.transport.progress();
      const auto start = Clock::now();
      me.transport.close(true, 0);
      EXPECT_LT(millisecondsSince(start), 5000);
      EXPECT_EQ(recv.completions, 1);
      EXPECT_EQ(recv.status, TransferStatus::cancelled);
      EXPECT_EQ(send.completions, 1);
      EXPECT_TRUE(send.status == TransferStatus::cancelled || send.status == TransferStatus::ok);
      me.transport.recv(1, tagOf(1, 1), in.data(), in.size(), &after);
      EXPECT_EQ(after.completions, 1);
      EXPECT_EQ(after.status, TransferStatus::cancelled);
      EXPECT_FALSE(me.transport.progress());
      me.transport.wake();
      me.transport.close(true, 0);
      me.transport.close(false, 10);
    }
    me.meet();
  });
}

TEST_P(TransportContract, ADeadPeerIsUnreachable) {
  const Kind& kind = GetParam();
  runDeadly(3, [&kind](Member& me) {
    acquaint(me, 0, 2);
    acquaint(me, 1, 2);
    acquaint(me, 0, 1);
    const std::vector<std::uint8_t> large(8 * kMiB);
    std::uint32_t last = 42;
    if (me.rank() == 2) {
      Probe send;
      me.transport.send(0, tagOf(2, 5), &last, sizeof last, &send);
      finish(me.transport, {&send}, 50);
      me.meet();
      me.die();
    }
    // One pending of each sort; rank 1 only receives.
    Probe recv, send, late, lateSend, lastWord;
    std::vector<std::uint8_t> in(100000);
    me.transport.recv(2, tagOf(2, 1), in.data(), in.size(), &recv);
    if (me.rank() == 0) me.transport.send(2, tagOf(0, 1), large.data(), large.size(), &send);
    me.meet();
    const auto start = Clock::now();
    ASSERT_TRUE(finish(me.transport, {&recv}, kNoticed)) << "rank " << me.rank();
    EXPECT_EQ(recv.status, TransferStatus::unreachable);
    if (me.rank() == 0) {
      ASSERT_TRUE(finish(me.transport, {&send}, kNoticed));
      EXPECT_EQ(send.status,
                kind.buffered == Buffered::all ? TransferStatus::ok : TransferStatus::unreachable);
      // What had been handed over before its end is still there.
      const bool kept = kind.buffered != Buffered::none;
      last = 0;
      me.transport.recv(2, tagOf(2, 5), &last, sizeof last, &lastWord);
      ASSERT_TRUE(finish(me.transport, {&lastWord}, kNoticed));
      EXPECT_EQ(lastWord.status, kept ? TransferStatus::ok : TransferStatus::unreachable);
      EXPECT_EQ(last, kept ? 42u : 0u);
    }
    me.transport.recv(2, tagOf(2, 2), in.data(), in.size(), &late);
    me.transport.send(2, tagOf(me.rank(), 2), large.data(), large.size(), &lateSend);
    ASSERT_TRUE(finish(me.transport, {&late, &lateSend}, kNoticed));
    EXPECT_EQ(late.status, TransferStatus::unreachable);
    EXPECT_EQ(lateSend.status, TransferStatus::unreachable);
    EXPECT_NE(me.transport.lastError().find("to "), std::string::npos) << me.transport.lastError();
    EXPECT_LT(millisecondsSince(start), kNoticed);
    // The living still have each other.
    acquaint(me, 0, 1);
    const auto closing = Clock::now();
    me.transport.close(false, 20000);
    EXPECT_LT(millisecondsSince(closing), kNoticed);
  });
}

// Whoever first turns to a peer after its end learns of it too.
TEST_P(TransportContract, APeerThatDiedBeforeBeingKnown) {
  runDeadly(2, [](Member& me) {
    if (me.rank() == 1) {
      me.meet();
      me.die();
    }
    me.meet();
    std::this_thread::sleep_for(milliseconds(300));
    std::vector<std::uint8_t> in(1000);
    const std::vector<std::uint8_t> large(kMiB);
    Probe recv, send;
    me.transport.recv(1, tagOf(1, 1), in.data(), in.size(), &recv);
    me.transport.send(1, tagOf(0, 1), large.data(), large.size(), &send);
    ASSERT_TRUE(finish(me.transport, {&recv, &send}, kNoticed));
    EXPECT_EQ(recv.status, TransferStatus::unreachable);
    EXPECT_EQ(send.status, TransferStatus::unreachable);
    const auto closing = Clock::now();
    me.transport.close(false, 20000);
    EXPECT_LT(millisecondsSince(closing), kNoticed);
  });
}

// One that is known to be dead elsewhere: here it only does nothing.
TEST_P(TransportContract, APeerThatIsToldToBeDead) {
  if (!GetParam().processes) GTEST_SKIP() << "threads that leave say so themselves";
  runDeadly(3, [](Member& me) {
    const std::vector<std::uint8_t> large(8 * kMiB);
    acquaint(me, 0, 2);
    acquaint(me, 0, 1);
    if (me.rank() == 2) {
      std::uint32_t last = 42;
      Probe send;
      me.transport.send(0, tagOf(2, 5), &last, sizeof last, &send);
      finish(me.transport, {&send}, 50);
      me.meet();
      me.meet();
      me.die();
    }
    if (me.rank() == 1) {
      me.meet();
      me.transport.lose(2, "it is silent");
      acquaint(me, 0, 1);
      me.transport.close(false, 20000);
      me.meet();
      return;
    }
    Probe recv, send, late;
    std::uint32_t in = 0;
    me.transport.recv(2, tagOf(2, 1), &in, sizeof in, &recv);
    me.transport.send(2, tagOf(0, 1), large.data(), large.size(), &send);
    me.meet();
    const auto start = Clock::now();
    me.transport.lose(2, "it is silent");
    ASSERT_TRUE(finish(me.transport, {&recv, &send}, kNoticed));
    EXPECT_EQ(recv.status, TransferStatus::unreachable);
    EXPECT_NE(me.transport.lastError().find("it is silent"), std::string::npos)
        << me.transport.lastError();
    me.transport.send(2, tagOf(0, 2), large.data(), large.size(), &late);
    ASSERT_TRUE(finish(me.transport, {&late}, kNoticed));
    EXPECT_EQ(late.status, TransferStatus::unreachable);
    acquaint(me, 0, 1);
    // Nor does the end wait for it.
    me.transport.close(false, 20000);
    EXPECT_LT(millisecondsSince(start), kNoticed);
    me.meet();
  });
}

TEST_P(TransportContract, CloseHearsOfTheDead) {
  if (!GetParam().processes) GTEST_SKIP() << "threads that leave say so themselves";
  runDeadly(3, [](Member& me) {
    acquaint(me, 0, 1);
    acquaint(me, 0, 2);
    acquaint(me, 1, 2);
    if (me.rank() == 2) {
      me.meet();
      me.die();
    }
    const auto start = Clock::now();
    me.transport.whileClosing = [&] {
      if (millisecondsSince(start) > 200) me.transport.lose(2, "it is silent");
    };
    std::thread clock([&] {
      std::this_thread::sleep_for(milliseconds(300));
      me.transport.wake();
    });
    EXPECT_TRUE(me.transport.close(false, 20000));
    EXPECT_LT(millisecondsSince(start), kNoticed);
    clock.join();
    me.meet();
  });
}

// A peer that dies in the middle of large messages, both ways.
TEST_P(TransportContract, APeerThatDiesWhileDataFlow) {
  runDeadly(2, [](Member& me) {
    const int peer = 1 - me.rank();
    constexpr int kMessages = 6;
    std::vector<std::vector<std::uint8_t>> out, in;
    std::vector<Probe> sends(kMessages), recvs(kMessages);
    for (int i = 0; i < kMessages; ++i) {
      out.emplace_back(16 * kMiB);
      in.emplace_back(16 * kMiB);
    }
    me.meet();
    for (int i = 0; i < kMessages; ++i) {
      me.transport.recv(peer, tagOf(peer, i), in[i].data(), in[i].size(), &recvs[i]);
      me.transport.send(peer, tagOf(me.rank(), i), out[i].data(), out[i].size(), &sends[i]);
    }
    if (me.rank() == 1) {
      ASSERT_TRUE(finish(me.transport, {&recvs[1]}));
      me.die();
    }
    for (int i = 0; i < kMessages; ++i) {
      ASSERT_TRUE(finish(me.transport, {&sends[i], &recvs[i]}, kNoticed)) << i;
      for (const Probe* probe : {&sends[i], &recvs[i]}) {
        EXPECT_EQ(probe->completions, 1);
        EXPECT_TRUE(probe->status == TransferStatus::ok ||
                    probe->status == TransferStatus::unreachable)
            << i << ": " << static_cast<int>(probe->status) << ", " << me.transport.lastError();
      }
    }
  });
}

// All exchange with all when one dies; each survivor gives up as an executor does.
TEST_P(TransportContract, ADeathAmongMany) {
  runDeadly(5, [](Member& me) {
    constexpr int kMessages = 8;
    struct Pair {
      Probe send[kMessages], recv[kMessages];
      std::vector<std::uint8_t> out, in[kMessages];
    };
    const auto bytesOf = [](int i) { return i % 2 == 0 ? std::size_t{2000} : kMiB / 2; };
    bool failed = false;
    for (std::uint32_t round = 0; !failed; ++round) {
      ASSERT_LT(round, 200u);
      if (me.rank() == 3 && round == 2) me.die();
      std::vector<Pair> pairs(me.ranks());
      const auto each = [&](auto&& function) {
        for (int peer = 0; peer < me.ranks(); ++peer)
          for (int i = 0; i < kMessages; ++i)
            if (peer != me.rank()) function(pairs[peer], peer, i);
      };
      each([&](Pair& pair, int peer, int i) {
        pair.in[i].resize(bytesOf(i));
        me.transport.recv(peer, tagOf(peer, round * kMessages + i), pair.in[i].data(), bytesOf(i),
                          &pair.recv[i]);
      });
      each([&](Pair& pair, int peer, int i) {
        pair.out.resize(kMiB / 2);
        me.transport.send(peer, tagOf(me.rank(), round * kMessages + i), pair.out.data(),
                          bytesOf(i), &pair.send[i]);
      });
      bool idle = false;
      ASSERT_TRUE(progressUntil(
          me.transport,
          [&] {
            bool failsNow = false;
            idle = true;
            each([&](Pair& pair, int, int i) {
              for (const Probe* probe : {&pair.send[i], &pair.recv[i]}) {
                if (probe->completions == 0)
                  idle = false;
                else if (probe->status != TransferStatus::ok)
                  failsNow = true;
              }
            });
            if (failsNow && !failed) {
              failed = true;
              each([&](Pair& pair, int, int i) {
                me.transport.cancel(&pair.send[i]);
                me.transport.cancel(&pair.recv[i]);
              });
            }
            return idle;
          },
          kNoticed))
          << "rank " << me.rank() << " round " << round;
      each([&](Pair& pair, int, int i) {
        EXPECT_EQ(pair.send[i].completions, 1);
        EXPECT_EQ(pair.recv[i].completions, 1);
      });
    }
    me.transport.close(true, 0);
  });
}

void expectRefused(Transport& transport, std::span<const Transport::Address> addresses,
                   const char* why) {
  try {
    transport.connect(addresses);
    ADD_FAILURE() << "connected; expected: " << why;
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
  }
}

TEST_P(TransportContract, WrongAddressesAreNamed) {
  const Kind& kind = GetParam();
  run(1, [&kind](Member&) {
    const auto a = kind.make(0, 2), b = kind.make(1, 2);
    const Transport::Address first = a->address(), second = b->address();
    expectRefused(*a, {}, "rank 0: connect got 0 addresses, expected one for each of 2 ranks");
    expectRefused(*a, std::vector{second, first}, "expected rank 0 of 2");
    expectRefused(*a, std::vector{first, Transport::Address(3)}, "the address of rank 1 is not a");
    expectRefused(*a, std::vector{first, Transport::Address(500)},
                  "the address of rank 1 is not a");
    EXPECT_THROW(kind.make(2, 2), std::runtime_error);
    EXPECT_THROW(kind.make(0, 0), std::runtime_error);
  });
}

}  // namespace
}  // namespace moeccl::test
