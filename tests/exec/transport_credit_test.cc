// Messages that nobody asks for: how many a rank takes, and what becomes of those beyond.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "src/exec/tcp.h"
#include "src/exec/ucx.h"
#include "tests/exec/transport_world.h"

namespace moeccl::test {
namespace {

constexpr std::size_t kMemory = std::size_t{256} << 10;
constexpr int kMessages = 4000;

std::unique_ptr<Transport> overTcp(int rank, int ranks) {
  TcpOptions options;
  options.secret = Secret{std::byte{3}};
  options.oneHost = true;
  options.memory = kMemory;
  return makeTcpTransport(rank, ranks, options);
}

std::unique_ptr<Transport> overSharedMemory(int rank, int ranks) {
  return makeUcxTransport(rank, ranks, {.reach = UcxReach::sharedMemory, .memory = kMemory});
}

// A carrier, and the size of messages.
struct Case {
  Kind kind;
  std::size_t bytes;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.kind.name << ", " << c.bytes << " bytes";
}

class Credit : public testing::TestWithParam<Case> {
 protected:
  const std::size_t bytes_ = GetParam().bytes;

  void run(const std::function<void(Member&)>& body) const {
    if (GetParam().kind.name == "ucx" && !hasUcx()) GTEST_SKIP() << "built without UCX";
    EXPECT_EQ(runJob(GetParam().kind, 2, body), "");
  }
  // Sends that have not ended are kept in `probes`.
  void sendAll(Member& me, std::list<Probe>& probes, std::vector<std::vector<std::uint8_t>>& data,
               int tags) const {
    for (int i = 0; i < kMessages; ++i) {
      data.push_back(pattern(static_cast<std::uint64_t>(i), bytes_));
      me.transport.send(1, tagOf(0, static_cast<std::uint32_t>(i % tags)), data.back().data(),
                        bytes_, &probes.emplace_back());
    }
  }
  static std::ptrdiff_t over(const std::list<Probe>& probes) {
    return std::ranges::count(probes, 1, &Probe::completions);
  }
};

void progressFor(Transport& transport, int milliseconds) {
  progressUntil(
      transport, [] { return false; }, milliseconds);
}

// Comes back when all that rank 0 has begun to send before has arrived, and rank 1 has been in here
// for some time.
void settle(Member& me) {
  Probe probe;
  if (me.rank() == 0) {
    me.transport.send(1, tagOf(0, 20), nullptr, 0, &probe);
  } else {
    progressFor(me.transport, 100);
    me.transport.recv(0, tagOf(0, 20), nullptr, 0, &probe);
  }
  EXPECT_TRUE(finish(me.transport, {&probe}));
}

// The receiver makes progress all the time.
TEST_P(Credit, BoundsWhatNobodyAsksFor) {
  run([this](Member& me) {
    std::list<Probe> probes;
    std::vector<std::vector<std::uint8_t>> data;
    if (me.rank() == 0) {
      sendAll(me, probes, data, 1);
      settle(me);
      // No message costs less than 200 bytes.
      EXPECT_LE(over(probes) * std::max<std::ptrdiff_t>(200, static_cast<std::ptrdiff_t>(bytes_)),
                static_cast<std::ptrdiff_t>(kMemory));
      // Large ones need their receiver, over UCX.
      if (bytes_ <= 5000) {
        EXPECT_GT(over(probes), 0);
      }
    } else {
      settle(me);
    }
    settle(me);
    // Asked for, all come, each in its turn.
    if (me.rank() == 0) {
      EXPECT_TRUE(progressUntil(me.transport, [&] { return over(probes) == kMessages; }));
      EXPECT_EQ(std::ranges::count(probes, TransferStatus::ok, &Probe::status), kMessages);
      return;
    }
    for (int i = 0; i < kMessages; ++i) {
      std::vector<std::uint8_t> room(bytes_);
      Probe recv;
      me.transport.recv(0, tagOf(0, 0), room.data(), bytes_, &recv);
      ASSERT_TRUE(finish(me.transport, {&recv})) << i;
      ASSERT_EQ(recv.status, TransferStatus::ok);
      ASSERT_EQ(room, pattern(static_cast<std::uint64_t>(i), bytes_)) << i;
    }
    Tag found;
    EXPECT_FALSE(me.transport.unexpected(0, 0, &found));
  });
}

// What nobody asks for does not keep back what is asked for, before or after it is sent.
TEST_P(Credit, IsNotNeededByWhatIsAskedFor) {
  run([this](Member& me) {
    std::list<Probe> probes;
    std::vector<std::vector<std::uint8_t>> data;
    std::vector<std::uint8_t> early(bytes_), late(bytes_);
    Probe recvs[2];
    if (me.rank() == 1) me.transport.recv(0, tagOf(0, 7), early.data(), bytes_, &recvs[0]);
    me.meet();
    if (me.rank() == 0) {
      sendAll(me, probes, data, 5);
      Probe sends[2];
      const std::vector<std::uint8_t> seven = pattern(7, bytes_), eight = pattern(8, bytes_);
      me.transport.send(1, tagOf(0, 7), seven.data(), bytes_, &sends[0]);
      me.transport.send(1, tagOf(0, 8), eight.data(), bytes_, &sends[1]);
      EXPECT_TRUE(finish(me.transport, {&sends[0], &sends[1]}));
      for (Probe& each : probes)
        if (each.completions == 0) me.transport.cancel(&each);
      EXPECT_TRUE(progressUntil(me.transport, [&] { return over(probes) == kMessages; }));
      EXPECT_GT(std::ranges::count(probes, TransferStatus::cancelled, &Probe::status), 0);
    } else {
      EXPECT_TRUE(finish(me.transport, {&recvs[0]}));
      me.transport.recv(0, tagOf(0, 8), late.data(), bytes_, &recvs[1]);
      EXPECT_TRUE(finish(me.transport, {&recvs[1]}));
      EXPECT_EQ(early, pattern(7, bytes_));
      EXPECT_EQ(late, pattern(8, bytes_));
      progressFor(me.transport, 300);
    }
  });
}

// Messages that were taken back are none, and messages come after them.
TEST_P(Credit, DoesNotBringWhatWasTakenBack) {
  run([this](Member& me) {
    std::list<Probe> probes;
    std::vector<std::vector<std::uint8_t>> data;
    if (me.rank() == 0) {
      sendAll(me, probes, data, 1);
      settle(me);
      const auto arrived = static_cast<std::uint32_t>(over(probes));
      for (Probe& each : probes)
        if (each.completions == 0) me.transport.cancel(&each);
      EXPECT_TRUE(progressUntil(me.transport, [&] { return over(probes) == kMessages; }));
      Probe sends[2];
      std::vector<std::uint8_t> count(4);
      std::memcpy(count.data(), &arrived, sizeof arrived);
      const std::vector<std::uint8_t> last = pattern(99, bytes_);
      me.transport.send(1, tagOf(0, 0), last.data(), bytes_, &sends[0]);
      me.transport.send(1, tagOf(0, 9), count.data(), count.size(), &sends[1]);
      EXPECT_TRUE(finish(me.transport, {&sends[0], &sends[1]}));
      return;
    }
    settle(me);
    std::uint32_t arrived = 0;
    Probe counted;
    me.transport.recv(0, tagOf(0, 9), &arrived, sizeof arrived, &counted);
    ASSERT_TRUE(finish(me.transport, {&counted}));
    progressFor(me.transport, 50);  // what was taken back in the middle of its way goes
    for (std::uint32_t i = 0; i <= arrived; ++i) {
      std::vector<std::uint8_t> room(bytes_);
      Probe recv;
      me.transport.recv(0, tagOf(0, 0), room.data(), bytes_, &recv);
      ASSERT_TRUE(finish(me.transport, {&recv})) << i << " of " << arrived;
      ASSERT_EQ(room, pattern(i < arrived ? i : 99, bytes_)) << i;
    }
  });
}

// A rank that leaves with messages that nobody has asked for keeps nobody.
TEST_P(Credit, KeepsNobodyWhoLeaves) {
  run([this](Member& me) {
    static std::list<Probe> probes;
    static std::vector<std::vector<std::uint8_t>> data;
    if (me.rank() == 0) sendAll(me, probes, data, 3);
  });
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Kind& kind : {Kind{"tcp", true, &overTcp}, Kind{"ucx", true, &overSharedMemory}})
    for (const std::size_t bytes : {0, 16, 300, 5000, 40000}) all.push_back({kind, bytes});
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, Credit, testing::ValuesIn(cases()), [](const auto& info) {
  return info.param.kind.name + std::to_string(info.param.bytes);
});

}  // namespace
}  // namespace moeccl::test
