// Messages: that they arrive whole, once, where they should.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <span>
#include <thread>

#include "tests/exec/transport_contract.h"

namespace moeccl::test {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kMiB = std::size_t{1} << 20;
// On both sides of every change of protocol: inline, eager, in pieces, rendezvous.
constexpr std::size_t kSizes[] = {0, 1, 7, 4096, 65536, kMiB + 3};

void expectArrived(const Probe& probe, std::span<const std::uint8_t> buffer, std::uint64_t seed,
                   std::size_t bytes) {
  EXPECT_EQ(probe.completions, 1);
  EXPECT_EQ(probe.status, TransferStatus::ok);
  EXPECT_EQ(probe.arrived, bytes);
  const std::vector<std::uint8_t> expected = pattern(seed, bytes);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), buffer.begin())) << bytes << " bytes";
}

// Both ranks send `bytes` bytes to each other.
void exchange(Member& me, std::uint32_t call, std::size_t bytes) {
  const int peer = 1 - me.rank();
  const std::vector<std::uint8_t> out = pattern(call * 2 + me.rank(), bytes);
  std::vector<std::uint8_t> in(bytes);
  Probe send, recv;
  me.transport.recv(peer, tagOf(peer, call), in.data(), bytes, &recv);
  me.transport.send(peer, tagOf(me.rank(), call), out.data(), bytes, &send);
  ASSERT_TRUE(finish(me.transport, {&send, &recv})) << bytes << " bytes";
  EXPECT_EQ(send.completions, 1);
  EXPECT_EQ(send.status, TransferStatus::ok);
  expectArrived(recv, in, call * 2 + peer, bytes);
}

TEST_P(TransportContract, SizesInBothDirections) {
  run(2, [](Member& me) {
    std::uint32_t call = 0;
    for (std::size_t bytes : kSizes) exchange(me, call++, bytes);
  });
}

TEST_P(TransportContract, WideSixtyFourMebibytes) {
  run(2, [](Member& me) { exchange(me, 0, 64 * kMiB); });
}

TEST_P(TransportContract, ToOneself) {
  run(1, [](Member& me) {
    std::uint32_t call = 0;
    for (std::size_t bytes : kSizes) {
      const std::vector<std::uint8_t> out = pattern(call, bytes);
      std::vector<std::uint8_t> in(bytes);
      Probe send, recv;
      me.transport.send(0, tagOf(0, call), out.data(), bytes, &send);
      me.transport.recv(0, tagOf(0, call), in.data(), bytes, &recv);
      ASSERT_TRUE(finish(me.transport, {&send, &recv})) << bytes << " bytes";
      expectArrived(recv, in, call++, bytes);
    }
  });
}

TEST_P(TransportContract, ManyToOneInReverse) {
  constexpr int kMessages = 60;
  run(5, [](Member& me) {
    const auto bytesOf = [](int message) { return kSizes[message % std::size(kSizes)] + message; };
    std::vector<std::vector<std::uint8_t>> data;
    if (me.rank() > 0) {
      std::vector<Probe> sends(kMessages);
      for (int i = 0; i < kMessages; ++i) {
        data.push_back(pattern(me.rank() * 1000 + i, bytesOf(i)));
        me.transport.send(0, tagOf(me.rank(), i), data[i].data(), data[i].size(), &sends[i]);
      }
      for (const Probe& send : sends) ASSERT_TRUE(finish(me.transport, {&send}));
      return;
    }
    const int total = kMessages * (me.ranks() - 1);
    std::vector<Probe> recvs(total);
    for (int i = 0; i < total; ++i) {
      const int message = kMessages - 1 - i / (me.ranks() - 1), peer = 1 + i % (me.ranks() - 1);
      data.emplace_back(bytesOf(message));
      me.transport.recv(peer, tagOf(peer, message), data[i].data(), data[i].size(), &recvs[i]);
    }
    for (int i = 0; i < total; ++i) {
      const int message = kMessages - 1 - i / (me.ranks() - 1), peer = 1 + i % (me.ranks() - 1);
      ASSERT_TRUE(finish(me.transport, {&recvs[i]}));
      expectArrived(recvs[i], data[i], peer * 1000 + message, bytesOf(message));
    }
  });
}

TEST_P(TransportContract, UnexpectedMessagesAreKept) {
  run(2, [](Member& me) {
    constexpr int kCount = std::size(kSizes);
    std::vector<Probe> probes(kCount);
    std::vector<std::vector<std::uint8_t>> data;
    if (me.rank() == 0) {
      for (int i = 0; i < kCount; ++i) {
        data.push_back(pattern(i, kSizes[i]));
        me.transport.send(1, tagOf(0, i), data[i].data(), data[i].size(), &probes[i]);
      }
    } else {
      // Messages come in, one way or another, before anybody has asked for them.
      progressUntil(
          me.transport, [] { return false; }, 50);
      for (int i = 0; i < kCount; ++i) data.emplace_back(kSizes[i]);
      for (int i = kCount - 1; i >= 0; --i)
        me.transport.recv(0, tagOf(0, i), data[i].data(), data[i].size(), &probes[i]);
    }
    for (int i = 0; i < kCount; ++i) {
      ASSERT_TRUE(finish(me.transport, {&probes[i]}));
      if (me.rank() == 1) expectArrived(probes[i], data[i], i, kSizes[i]);
    }
  });
}

// A message without a receive can be asked for by a part of its tag, from any sender and of any
// size; what has a receive, or has been received, cannot.
TEST_P(TransportContract, UnexpectedMessagesCanBeFound) {
  run(3, [](Member& me) {
    constexpr std::uint32_t kCalls = std::size(kSizes);
    if (me.rank() > 0) {
      std::vector<Probe> sends(kCalls);
      std::vector<std::vector<std::uint8_t>> data;
      me.meet();  // a receive is posted
      for (std::uint32_t call = 0; call < kCalls; ++call) {
        data.push_back(pattern(call, kSizes[call]));
        me.transport.send(0, tagOf(me.rank(), call), data[call].data(), kSizes[call], &sends[call]);
      }
      for (const Probe& send : sends) ASSERT_TRUE(finish(me.transport, {&send}));
      return;
    }
    Tag found = 0;
    const Tag all = ~Tag{0}, sources = (Tag{1} << kSourceBits) - 1;
    EXPECT_FALSE(me.transport.unexpected(0, 0, &found));
    const auto comes = [&](Tag value, Tag mask) {
      return progressUntil(me.transport,
                           [&] { return me.transport.unexpected(value, mask, &found); });
    };
    std::vector<std::uint8_t> in(kSizes[kCalls - 1]);
    Probe expected;
    me.transport.recv(2, tagOf(2, 1), in.data(), kSizes[1], &expected);
    me.meet();
    ASSERT_TRUE(finish(me.transport, {&expected}));
    for (int peer : {1, 2})
      for (std::uint32_t call = 0; call < kCalls; ++call) {
        if (peer == 2 && call == 1) continue;
        ASSERT_TRUE(comes(tagOf(peer, call), all)) << "rank " << peer << ", call " << call;
        EXPECT_EQ(found, tagOf(peer, call));
        ASSERT_TRUE(comes(tagOf(0, call), ~sources));
        EXPECT_EQ(found & ~sources, tagOf(0, call));
      }
    ASSERT_TRUE(comes(2, sources));
    EXPECT_EQ(sourceOf(found), 2);
    EXPECT_FALSE(me.transport.unexpected(tagOf(2, 1), all, &found));
    EXPECT_FALSE(me.transport.unexpected(tagOf(0, 0), sources, &found)) << "a message of nobody's";
    for (int peer : {1, 2})
      for (std::uint32_t call = 0; call < kCalls; ++call) {
        if (peer == 2 && call == 1) continue;
        Probe recv;
        me.transport.recv(peer, tagOf(peer, call), in.data(), kSizes[call], &recv);
        ASSERT_TRUE(finish(me.transport, {&recv}));
        expectArrived(recv, in, call, kSizes[call]);
        EXPECT_FALSE(me.transport.unexpected(tagOf(peer, call), all, &found));
      }
    EXPECT_FALSE(me.transport.unexpected(0, 0, &found));
  });
}

TEST_P(TransportContract, EqualTagsStayInOrder) {
  constexpr int kMessages = 100;
  run(2, [](Member& me) {
    std::vector<Probe> probes(kMessages);
    std::vector<std::vector<std::uint8_t>> data;
    for (int i = 0; i < kMessages; ++i) {
      const std::size_t bytes = i % 3 == 0 ? 100000 : 16;
      data.push_back(pattern(i, bytes));
      if (me.rank() == 0)
        me.transport.send(1, tagOf(0, 7), data[i].data(), bytes, &probes[i]);
      else
        std::ranges::fill(data[i], 0);
    }
    if (me.rank() == 1)
      for (int i = 0; i < kMessages; ++i)
        me.transport.recv(0, tagOf(0, 7), data[i].data(), data[i].size(), &probes[i]);
    for (int i = 0; i < kMessages; ++i) {
      ASSERT_TRUE(finish(me.transport, {&probes[i]}));
      if (me.rank() == 1) expectArrived(probes[i], data[i], i, data[i].size());
    }
  });
}

// Sizes of a message and its receive, and whether the receive is posted first.
struct Mismatch {
  std::size_t message, buffer;
  bool expected;
};

TEST_P(TransportContract, MessageOfAnotherSize) {
  run(2, [](Member& me) {
    std::uint32_t call = 0;
    for (const Mismatch& m : {Mismatch{100, 60, true},
                              {100, 60, false},
                              {kMiB, 1000, true},
                              {kMiB, 1000, false},
                              {20000, 0, true},
                              {20000, 0, false},
                              {60, 100, true},
                              {60, 100, false},
                              {kMiB - 5, kMiB, true},
                              {kMiB - 5, kMiB, false},
                              {0, 10, true},
                              {0, 10, false}}) {
      ++call;
      Probe probe;
      const std::vector<std::uint8_t> out = pattern(call, m.message);
      std::vector<std::uint8_t> in(m.buffer + 8, 0xee);
      const auto recv = [&] { me.transport.recv(0, tagOf(0, call), in.data(), m.buffer, &probe); };
      if (me.rank() == 1 && m.expected) recv();
      me.meet();
      if (me.rank() == 0) me.transport.send(1, tagOf(0, call), out.data(), m.message, &probe);
      if (me.rank() == 1 && !m.expected) {
        progressUntil(
            me.transport, [] { return false; }, 20);
        recv();
      }
      ASSERT_TRUE(finish(me.transport, {&probe})) << m.message << " into " << m.buffer;
      if (me.rank() == 0) {
        EXPECT_EQ(probe.status, TransferStatus::ok);
        continue;
      }
      const std::size_t arrives = std::min(m.message, m.buffer);
      EXPECT_EQ(probe.status, m.message > m.buffer ? TransferStatus::truncated : TransferStatus::ok)
          << m.message << " into " << m.buffer;
      EXPECT_EQ(probe.arrived, m.message);
      if (m.message <= m.buffer) {
        EXPECT_TRUE(std::equal(in.begin(), in.begin() + arrives, out.begin()));
      }
      EXPECT_EQ(std::ranges::count(in.begin() + m.buffer, in.end(), 0xee), 8);
    }
  });
}

// A chain of messages, each started by the end of the one before, back and forth.
TEST_P(TransportContract, TransfersStartFromCompletions) {
  constexpr int kRounds = 500;
  struct Link : Transfer {
    Member* me;
    std::vector<Link>* chain;
    int index;
    std::uint32_t value = 0;
    void start() {
      const int peer = 1 - me->rank();
      const bool mine = index % 2 == me->rank();
      if (mine)
        me->transport.send(peer, tagOf(me->rank(), index), &value, sizeof value, this);
      else
        me->transport.recv(peer, tagOf(peer, index), &value, sizeof value, this);
    }
    bool ended = false;
  };
  run(2, [](Member& me) {
    std::vector<Link> chain(kRounds);
    for (int i = 0; i < kRounds; ++i) {
      chain[i].me = &me;
      chain[i].chain = &chain;
      chain[i].index = i;
      chain[i].done = [](Transfer* self, TransferStatus status, std::size_t) {
        auto* link = static_cast<Link*>(self);
        EXPECT_EQ(status, TransferStatus::ok);
        link->ended = true;
        if (link->index + 1 == kRounds) return;
        Link& next = (*link->chain)[link->index + 1];
        next.value = link->value + 1;
        next.start();
      };
    }
    chain[0].start();
    ASSERT_TRUE(progressUntil(me.transport, [&] { return chain.back().ended; }));
    EXPECT_EQ(chain.back().value, kRounds - 1);
  });
}

TEST_P(TransportContract, CancelledReceive) {
  run(2, [](Member& me) {
    Probe cancelled, other, send, late;
    std::vector<std::uint8_t> in(1000, 0xee), more(1000);
    const std::vector<std::uint8_t> out = pattern(3, 1000);
    if (me.rank() == 1) {
      me.transport.recv(0, tagOf(0, 1), in.data(), in.size(), &cancelled);
      me.transport.recv(0, tagOf(0, 2), more.data(), more.size(), &other);
      me.transport.progress();
      me.transport.cancel(&cancelled);
      ASSERT_TRUE(finish(me.transport, {&cancelled}));
      EXPECT_EQ(cancelled.status, TransferStatus::cancelled);
    }
    me.meet();
    if (me.rank() == 0) {
      me.transport.send(1, tagOf(0, 1), out.data(), out.size(), &send);
      me.transport.send(1, tagOf(0, 2), out.data(), out.size(), &other);
      ASSERT_TRUE(finish(me.transport, {&other, &send}));
    } else {
      ASSERT_TRUE(finish(me.transport, {&other}));
      expectArrived(other, more, 3, 1000);
      EXPECT_EQ(std::ranges::count(in, 0xee), 1000);
      me.transport.recv(0, tagOf(0, 1), in.data(), in.size(), &late);
      ASSERT_TRUE(finish(me.transport, {&late}));
      expectArrived(late, in, 3, 1000);
      EXPECT_EQ(cancelled.completions, 1);
      me.transport.cancel(&cancelled);  // too late; no harm
      EXPECT_EQ(cancelled.completions, 1);
    }
  });
}

// A cancelled message that its receiver never asks for, and one that it has asked for: neither
// hangs, and nobody loses anybody over it.
TEST_P(TransportContract, CancelledSends) {
  run(2, [](Member& me) {
    for (std::uint32_t call = 0; call < 20; call += 10) {
      const bool asked = call == 10;
      std::vector<std::uint8_t> data(8 * kMiB);
      Probe large, out, in;
      std::uint32_t hello = 5 + call, heard = 0;
      const int peer = 1 - me.rank();
      if (me.rank() == 1 && asked)
        me.transport.recv(0, tagOf(0, call), data.data(), data.size(), &large);
      me.meet();
      if (me.rank() == 0) {
        me.transport.send(1, tagOf(0, call), data.data(), data.size(), &large);
        progressUntil(
            me.transport, [] { return false; }, 20);
        me.transport.cancel(&large);
        me.transport.cancel(&large);
        ASSERT_TRUE(finish(me.transport, {&large}, 10000));
        EXPECT_EQ(large.completions, 1);
        EXPECT_TRUE(large.status == TransferStatus::cancelled ||
                    large.status == TransferStatus::ok);
      }
      me.transport.recv(peer, tagOf(peer, call + 1), &heard, sizeof heard, &in);
      me.transport.send(peer, tagOf(me.rank(), call + 1), &hello, sizeof hello, &out);
      ASSERT_TRUE(finish(me.transport, {&out, &in}));
      EXPECT_EQ(in.status, TransferStatus::ok);
      EXPECT_EQ(heard, hello);
      if (me.rank() == 1 && asked) {
        me.transport.cancel(&large);
        ASSERT_TRUE(finish(me.transport, {&large}, 10000));
      }
      me.meet();
    }
  });
}

// Nor does one that computes, and who has cancelled keeps the connection: what is sent later
// arrives, and what was cancelled does not.
TEST_P(TransportContract, CancelledSendsToALatePeer) {
  run(2, [](Member& me) {
    std::vector<std::uint8_t> data(8 * kMiB);
    const int peer = 1 - me.rank();
    std::uint32_t hello = 7, heard = 0;
    Probe large[3], out, in, late;
    if (me.rank() == 0) {
      for (Probe& each : large) {
        me.transport.send(1, tagOf(0, 1), data.data(), data.size(), &each);
        me.transport.progress();
        me.transport.cancel(&each);
      }
      ASSERT_TRUE(finish(me.transport, {&large[0], &large[1], &large[2]}, 10000));
      // What had been sent before it was cancelled arrives.
      hello =
          static_cast<std::uint32_t>(std::ranges::count(large, TransferStatus::ok, &Probe::status));
    }
    me.meet();
    me.transport.recv(peer, tagOf(peer, 2), &heard, sizeof heard, &in);
    me.transport.send(peer, tagOf(me.rank(), 2), &hello, sizeof hello, &out);
    ASSERT_TRUE(finish(me.transport, {&out, &in}));
    EXPECT_EQ(in.status, TransferStatus::ok);
    EXPECT_TRUE(me.rank() == 1 || heard == 7) << heard;
    Tag found = 0;
    const bool allCancelled = me.rank() == 0 || heard == 0;
    EXPECT_TRUE(!allCancelled ||
                progressUntil(
                    me.transport,
                    [&] { return !me.transport.unexpected(tagOf(0, 1), ~Tag{0}, &found); }, 10000));
    me.meet();
  });
}

// Memory that is gone when it has been given back: who touches it then dies.
class Pages {
 public:
  explicit Pages(std::size_t bytes) : bytes_(bytes) {
    void* const memory =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = memory;
  }
  Pages(const Pages&) = delete;
  ~Pages() { giveBack(); }
  std::uint8_t* data() { return static_cast<std::uint8_t*>(memory_); }
  void giveBack() {
    if (memory_) munmap(memory_, bytes_);
    memory_ = nullptr;
  }

 private:
  void* memory_;
  std::size_t bytes_;
};

// A send that is over leaves its memory alone, whenever its receiver turns to it, asked for or not;
// and what a receive takes for a message is one.
TEST_P(TransportContract, CancelledSendsLeaveTheirMemory) {
  const Kind& kind = GetParam();
  run(2, [&kind](Member& me) {
    const int peer = 1 - me.rank();
    std::uint32_t call = 0;
    const auto greet = [&] {
      std::uint32_t hello = 7, heard = 0;
      Probe out, in;
      me.transport.recv(peer, tagOf(peer, call), &heard, sizeof heard, &in);
      me.transport.send(peer, tagOf(me.rank(), call++), &hello, sizeof hello, &out);
      finish(me.transport, {&out, &in}, 10000);
      for (Probe* each : {&out, &in}) me.transport.cancel(each);
      EXPECT_TRUE(finish(me.transport, {&out, &in}, 10000));
      return in.status == TransferStatus::ok && heard == hello;
    };
    for (const bool asked : {false, true})
      for (const std::size_t bytes :
           {std::size_t{8}, std::size_t{1000}, std::size_t{8000}, std::size_t{30000}, 8 * kMiB}) {
        // More than a transport takes at once.
        const std::size_t count = std::clamp<std::size_t>(3 * kMiB / bytes, 2, 600);
        Pages pages(count * bytes);
        std::vector<Probe> probes(count);
        const auto end = [&] {
          for (Probe& each : probes) me.transport.cancel(&each);
          for (Probe& each : probes) ASSERT_TRUE(finish(me.transport, {&each}, 10000));
          pages.giveBack();
        };
        const auto start = [&](auto&& one) {
          for (std::size_t i = 0; i < count; ++i)
            one(tagOf(0, call + static_cast<std::uint32_t>(i)), pages.data() + i * bytes,
                &probes[i]);
        };
        if (me.rank() == 0) std::memset(pages.data(), 0x5a, count * bytes);
        if (me.rank() == 1 && asked)
          start([&](Tag tag, std::uint8_t* at, Probe* probe) {
            me.transport.recv(0, tag, at, bytes, probe);
          });
        me.meet();
        if (me.rank() == 0) {
          start([&](Tag tag, std::uint8_t* at, Probe* probe) {
            me.transport.send(1, tag, at, bytes, probe);
          });
          progressUntil(
              me.transport, [] { return false; }, 20);
          end();
        }
        me.meet();
        call += static_cast<std::uint32_t>(count);
        const bool mayLose = asked && kind.readsMemory;
        bool known = greet();
        ASSERT_TRUE(known || mayLose) << bytes << " bytes: " << me.transport.lastError();
        if (me.rank() == 1 && asked) {
          for (std::size_t i = 0; i < count; ++i)
            if (probes[i].completions > 0 && (known || probes[i].status == TransferStatus::ok)) {
              ASSERT_EQ(probes[i].status, TransferStatus::ok) << bytes << " bytes";
              ASSERT_EQ(pages.data()[i * bytes], 0x5a) << bytes << " bytes";
              ASSERT_EQ(pages.data()[(i + 1) * bytes - 1], 0x5a) << bytes << " bytes";
            }
          end();
        }
        known = known && greet();
        ASSERT_TRUE(known || mayLose) << bytes << " bytes: " << me.transport.lastError();
        if (!known) {
          me.transport.close(true, 0);
          return;
        }
      }
  });
}

// Nor does what is left of a message come into the memory of a receive that is over.
TEST_P(TransportContract, CancelledReceivesLeaveTheirMemory) {
  runDeadly(2, [](Member& me) {
    constexpr std::size_t kBytes = 8 * kMiB;
    Pages pages(kBytes);
    Probe probe;
    if (me.rank() == 1) me.transport.recv(0, tagOf(0, 1), pages.data(), kBytes, &probe);
    me.meet();
    if (me.rank() == 0) me.transport.send(1, tagOf(0, 1), pages.data(), kBytes, &probe);
    for (int i = 0; i < 4; ++i) {  // it begins
      me.transport.progress();
      me.meet();
    }
    if (me.rank() == 1) {
      progressUntil(
          me.transport, [] { return false; }, 20);
      me.transport.cancel(&probe);
      ASSERT_TRUE(finish(me.transport, {&probe}, 10000));
      pages.giveBack();
    }
    me.meet();
    progressUntil(
        me.transport, [] { return false; }, 100);
    me.transport.cancel(&probe);
    ASSERT_TRUE(finish(me.transport, {&probe}, 10000));
    EXPECT_EQ(probe.completions, 1);
    me.meet();
    me.transport.close(true, 0);
  });
}

// A receiver that never gets to its progress() cannot keep the sender from taking its memory back.
// (It dies here, since UCX 1.13 over TCP may abort() a rank whose very first connection is cut.)
TEST_P(TransportContract, CancelledSendToASilentPeer) {
  runDeadly(2, [](Member& me) {
    if (me.rank() == 1) {
      me.meet();
      me.die();
    }
    const std::vector<std::uint8_t> data(8 * kMiB);
    Probe send;
    me.transport.send(1, tagOf(0, 1), data.data(), data.size(), &send);
    me.transport.cancel(&send);
    ASSERT_TRUE(finish(me.transport, {&send}, 10000));
    EXPECT_EQ(send.completions, 1);
    EXPECT_TRUE(send.status == TransferStatus::cancelled || send.status == TransferStatus::ok);
    me.meet();
  });
}

}  // namespace
}  // namespace moeccl::test
