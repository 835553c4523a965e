// Ranks that end in the middle of the set-up: a raw client speaks for rank 1 of three, and its
// connection ends after each byte of what a rank says.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstring>
#include <latch>
#include <string>
#include <vector>

#include "src/bootstrap/clock.h"
#include "src/bootstrap/rendezvous.h"
#include "src/bootstrap/rendezvous_id.h"
#include "src/bootstrap/rendezvous_wire.h"
#include "src/bootstrap/socket.h"
#include "tests/bootstrap/support.h"

namespace moeccl {
namespace {

using test::Outcome;

constexpr std::int64_t kLong = 60'000;
constexpr int kRanks = 3, kCut = 1, kLate = 2;
// Bytes of a rank's part of each all-gather. An agreement on one byte is the shortest that there
// is.
constexpr std::size_t kParts[] = {1, 8};
constexpr std::size_t kJoined = sizeof(Greeting) + sizeof(Join);
constexpr std::size_t kFirstPart = sizeof(MessageHeader) + kParts[0];
constexpr std::size_t kSecondPart = sizeof(MessageHeader) + kParts[1];
constexpr std::size_t kAll = kJoined + kFirstPart + kSecondPart + sizeof(MessageHeader);

struct Cut {
  std::size_t at;  // bytes that the rank has said
  bool reset;      // instead of an end in order
  bool late;       // rank 2 brings its part once the connection has ended
};

// What rank 1 says until its connection is cut.
class RawRank {
 public:
  RawRank(const moecclUniqueId& id, const Cut& cut) : id_(decodeId(id)), cut_(cut) {}

  void speak() {
    socket_ = test::connectTo(id_.port);
    speakUntilCut();
    if (cut_.reset) {
      const linger now{1, 0};
      setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
      // A Socket shuts down first, which would be an end in order.
      const int copy = dup(socket_.get());
      const sockaddr none{AF_UNSPEC, {}};
      connect(copy, &none, sizeof none);
      close(copy);
    }
    socket_ = Socket();
  }

 private:
  // Returns false when the cut has come.
  bool say(const void* data, std::size_t bytes) {
    const std::size_t now = std::min(bytes, cut_.at - said_);
    send(socket_.get(), data, now, MSG_NOSIGNAL);
    said_ += now;
    return now == bytes && said_ < cut_.at;
  }

  bool hear(void* data, std::size_t bytes) {
    for (std::size_t have = 0; have < bytes;) {
      pollfd polled{socket_.get(), POLLIN, 0};
      if (poll(&polled, 1, 10'000) <= 0) return false;
      const ssize_t got = recv(socket_.get(), static_cast<char*>(data) + have, bytes - have, 0);
      if (got <= 0) return false;
      have += static_cast<std::size_t>(got);
    }
    return true;
  }

  bool sayPart(std::size_t bytes) {
    const MessageHeader header{MessageKind::part, moecclSuccess, bytes};
    const std::string part(bytes, 'p');
    if (!say(&header, sizeof header) || !say(part.data(), bytes)) return false;
    std::vector<char> whole(sizeof header + kRanks * bytes);
    return hear(whole.data(), whole.size());
  }

  bool speakUntilCut() {
    const Greeting greeting{kGreetingMagic, {}};
    Challenge challenge;
    if (!say(&greeting, sizeof greeting) || !hear(&challenge, sizeof challenge)) return false;
    Join join{};
    join.arrival = {kRanks, kCut, kLong, "raw:1"};
    join.proof = joinProof(id_.secret, {}, challenge.nonce, join.arrival);
    char answers[sizeof(Accepted) + sizeof(MessageHeader) + sizeof(std::int32_t)];
    if (!say(&join, sizeof join) || !hear(answers, sizeof answers)) return false;
    const MessageHeader goodbye{MessageKind::goodbye, moecclSuccess, 0};
    return sayPart(kParts[0]) && sayPart(kParts[1]) && say(&goodbye, sizeof goodbye);
  }

  const RendezvousId id_;
  const Cut cut_;
  Socket socket_;
  std::size_t said_ = 0;
};

// The set-up as another rank sees it: two all-gathers, and a wait for others by other means.
void takePart(const moecclUniqueId& id, int rank, const Cut& cut, std::latch& over) {
  const std::unique_ptr<Oob> oob = join(id, kRanks, rank, kLong);
  const std::size_t waits = cut.at <= kJoined + kFirstPart                 ? 0
                            : cut.at <= kJoined + kFirstPart + kSecondPart ? 1
                                                                           : std::size(kParts);
  for (std::size_t part = 0; part < std::size(kParts); ++part) {
    if (cut.late && rank == kLate && part == waits) {
      over.wait();
      usleep(1000);  // so that the service hears of the end first
    }
    std::vector<char> mine(kParts[part]), all(kRanks * kParts[part]);
    oob->allgather(mine.data(), all.data(), kParts[part]);
  }
  if (cut.at < kAll)
    for (const TimePoint end = afterMs(5000); !isPast(end); usleep(1000)) oob->check();
  oob->finish();
}

class Cuts : public test::LeaklessTest {};

// Whoever has not joined is a stranger still: the rank itself comes later.
TEST_F(Cuts, BeforeARankHasJoinedNobodyNotices) {
  const moecclUniqueId id = makeUniqueId();
  for (std::size_t at = 0; at < kJoined; ++at)
    for (const bool reset : {false, true}) RawRank(id, {at, reset, false}).speak();
  std::latch over(0);
  test::expectSuccess(test::runThreads(kRanks, [&](int rank) {
    takePart(id, rank, {kAll, false, false}, over);
  }));
}

void expectNamed(const Cut& cut) {
  SCOPED_TRACE("after byte " + std::to_string(cut.at) + (cut.reset ? ", reset" : "") +
               (cut.late ? ", rank 2 late" : ""));
  const moecclUniqueId id = makeUniqueId();
  std::latch over(1);
  const std::vector<Outcome> outcomes = test::runThreads(kRanks, [&](int rank) {
    if (rank != kCut) return takePart(id, rank, cut, over);
    RawRank(id, cut).speak();
    over.count_down();
  });
  for (int rank : {0, kLate}) {
    if (cut.at == kAll)
      EXPECT_EQ(outcomes[rank].result, moecclSuccess) << outcomes[rank].text;
    else
      test::expectFailure(outcomes[rank], moecclRemoteError, "rank 1 (raw:1) left");
  }
}

TEST_F(Cuts, AfterEachByteTheRankIsNamedToAll) {
  for (std::size_t at = kJoined; at <= kAll && !HasFailure(); ++at)
    for (const bool reset : {false, true})
      for (const bool late : {false, true}) expectNamed({at, reset, late});
}

}  // namespace
}  // namespace moeccl
