// The rendezvous among people who do not hold the id: they are refused, and nobody who holds it
// notices.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <random>

#include "src/bootstrap/clock.h"
#include "src/bootstrap/rendezvous.h"
#include "src/bootstrap/rendezvous_dial.h"
#include "src/bootstrap/rendezvous_id.h"
#include "src/bootstrap/rendezvous_wire.h"
#include "src/bootstrap/socket.h"
#include "tests/bootstrap/support.h"

namespace moeccl {
namespace {

using namespace std::chrono_literals;
using test::connectTo;
using test::expectFailure;
using test::expectSuccess;
using test::kLoopback;
using test::Outcome;
using test::runThreads;

constexpr std::int64_t kLong = 60'000;

class Strangers : public test::LeaklessTest {};

void say(const Socket& socket, const void* data, std::size_t bytes) {
  ::send(socket.get(), data, bytes, MSG_NOSIGNAL);
}

// What the other end says until it closes, resets, or is silent for `ms`; *closed tells which.
std::string hear(const Socket& socket, int ms, bool* closed) {
  std::string heard;
  for (*closed = false;;) {
    pollfd polled{socket.get(), POLLIN, 0};
    if (poll(&polled, 1, ms) == 0) return heard;
    char bytes[512];
    const ssize_t got = recv(socket.get(), bytes, sizeof bytes, 0);
    if (got <= 0) {
      *closed = true;
      return heard;
    }
    heard.append(bytes, static_cast<std::size_t>(got));
  }
}

// A working communicator's set-up: joins and exchanges.
void expectWorks(const moecclUniqueId& id, int ranks) {
  expectSuccess(runThreads(ranks, [&](int rank) {
    const std::unique_ptr<Oob> oob = join(id, ranks, rank, kLong);
    const std::vector<int> all = exchangeValue(*oob, rank * rank);
    for (int other = 0; other < ranks; ++other) EXPECT_EQ(all[other], other * other);
  }));
}

TEST_F(Strangers, GarbageIsRefusedAtOnce) {
  const moecclUniqueId id = makeUniqueId();
  const std::uint16_t port = decodeId(id).port;
  std::mt19937 random(1);
  for (std::size_t bytes : {std::size_t{40}, std::size_t{41}, std::size_t{5000}}) {
    const Socket socket = connectTo(port);
    std::string garbage(bytes, '\0');
    for (char& c : garbage) c = static_cast<char>(random());
    say(socket, garbage.data(), garbage.size());
    bool closed = false;
    EXPECT_EQ(hear(socket, 5000, &closed), "");
    EXPECT_TRUE(closed);
  }
  const Socket http = connectTo(port);
  const std::string_view request = "GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n";
  say(http, request.data(), request.size());
  bool closed = false;
  EXPECT_EQ(hear(http, 5000, &closed), "");
  EXPECT_TRUE(closed);
  expectWorks(id, 2);
}

TEST_F(Strangers, SilenceIsRefusedAfterAWhile) {
  const moecclUniqueId id = makeUniqueId({}, {.idleMs = 2000, .handshakeMs = 100});
  const std::uint16_t port = decodeId(id).port;
  const Socket silent = connectTo(port), slow = connectTo(port), halfway = connectTo(port);
  // Slow: never idle for as long as the limit, but slower than it in all.
  const auto start = Clock::now();
  bool closed = false;
  while (!closed && Clock::now() - start < 5s) {
    say(slow, kGreetingMagic.data(), 1);
    hear(slow, 30, &closed);
  }
  EXPECT_TRUE(closed);
  EXPECT_LT(Clock::now() - start, 2s);
  EXPECT_EQ(hear(silent, 2000, &closed), "");
  EXPECT_TRUE(closed);
  EXPECT_EQ(hear(halfway, 2000, &closed), "");
  EXPECT_TRUE(closed);
  expectWorks(id, 2);
}

Challenge greet(const Socket& socket) {
  const Greeting greeting{kGreetingMagic, {}};
  say(socket, &greeting, sizeof greeting);
  Challenge challenge{};
  std::size_t have = 0;
  while (have < sizeof challenge) {
    pollfd polled{socket.get(), POLLIN, 0};
    if (poll(&polled, 1, 5000) <= 0) break;
    const ssize_t got =
        recv(socket.get(), reinterpret_cast<char*>(&challenge) + have, sizeof challenge - have, 0);
    if (got <= 0) break;
    have += static_cast<std::size_t>(got);
  }
  EXPECT_EQ(have, sizeof challenge);
  return challenge;
}

TEST_F(Strangers, WhoKnowsTheProtocolStillNeedsTheSecret) {
  const moecclUniqueId id = makeUniqueId();
  const RendezvousId rendezvous = decodeId(id);
  for (int which = 0; which < 3; ++which) {
    const Socket socket = connectTo(rendezvous.port);
    const Challenge challenge = greet(socket);
    Join join{};
    join.arrival = {2, 0, kLong, "stranger"};
    if (which == 0) {
      Secret wrong = rendezvous.secret;
      wrong[31] ^= std::byte{1};
      join.proof = joinProof(wrong, {}, challenge.nonce, join.arrival);
    } else if (which == 1) {
      join.proof = challenge.proof;  // what the service itself has proved is no proof of ours
    } else {
      // A proof for other words.
      join.proof = joinProof(rendezvous.secret, {}, challenge.nonce, join.arrival);
      join.arrival.rank = 1;
    }
    say(socket, &join, sizeof join);
    bool closed = false;
    EXPECT_EQ(hear(socket, 5000, &closed), "");
    EXPECT_TRUE(closed) << which;
  }
  expectWorks(id, 2);
}

TEST_F(Strangers, AProofServesOnce) {
  const moecclUniqueId id = makeUniqueId();
  const RendezvousId rendezvous = decodeId(id);
  Join recorded{};
  recorded.arrival = {3, 0, kLong, "recorded"};
  const Socket first = connectTo(rendezvous.port);
  recorded.proof = joinProof(rendezvous.secret, {}, greet(first).nonce, recorded.arrival);
  const Socket second = connectTo(rendezvous.port);
  greet(second);
  say(second, &recorded, sizeof recorded);
  bool closed = false;
  EXPECT_EQ(hear(second, 5000, &closed), "");
  EXPECT_TRUE(closed);
  expectWorks(id, 3);
}

TEST_F(Strangers, ACrowdDoesNotDelayTheRanks) {
  const moecclUniqueId id = makeUniqueId({}, {.handshakeMs = 20'000, .maxStrangers = 64});
  const std::uint16_t port = decodeId(id).port;
  // 200 that stay and say nothing, half of a greeting, a greeting, or garbage; and one that knocks
  // again and again while the ranks join.
  std::vector<Socket> crowd;
  const Greeting greeting{kGreetingMagic, {}};
  const std::string garbage(5000, 'x');
  for (int i = 0; i < 200; ++i) {
    crowd.push_back(connectTo(port));
    if (i % 4 == 1) say(crowd.back(), &greeting, sizeof greeting / 2);
    if (i % 4 == 2) say(crowd.back(), &greeting, sizeof greeting);
    if (i % 4 == 3) say(crowd.back(), garbage.data(), garbage.size());
  }
  std::atomic<bool> stop = false;
  std::thread knocking([&] {
    while (!stop) {  // and is there still when the service ends
      Socket socket;
      if (startConnect(kLoopback, port, &socket) == 0) {
        pollfd polled{socket.get(), POLLOUT, 0};
        poll(&polled, 1, 1000);
      }
    }
  });
  const auto start = Clock::now();
  expectWorks(id, 16);
  EXPECT_LT(Clock::now() - start, 5s);
  stop = true;
  knocking.join();
}

TEST_F(Strangers, AreBoundedInNumber) {
  const moecclUniqueId id = makeUniqueId({}, {.idleMs = 2000, .maxStrangers = 8});
  const std::uint16_t port = decodeId(id).port;
  std::vector<Socket> crowd;
  for (int i = 0; i < 100; ++i) crowd.push_back(connectTo(port));
  const auto open = [&] {
    int count = 0;
    for (const Socket& socket : crowd) {
      pollfd polled{socket.get(), POLLIN, 0};
      count += poll(&polled, 1, 0) == 0;
    }
    return count;
  };
  EXPECT_TRUE(test::eventually([&] { return open() == 8; })) << open();
  expectWorks(id, 2);
}

// ------------------------------------------------------------------- the other way round

// An id that leads to a listener of this test's instead of to a rendezvous.
class Impostor {
 public:
  Impostor() : listener_(listenAnywhere(&port_)) {}

  moecclUniqueId id(const Secret& secret) const {
    return encodeId({.port = port_, .secret = secret, .addresses = {kLoopback}});
  }
  Socket accept() {
    pollfd polled{listener_.get(), POLLIN, 0};
    poll(&polled, 1, 5000);
    return Socket(::accept(listener_.get(), nullptr, nullptr));
  }

 private:
  std::uint16_t port_ = 0;
  Socket listener_;
};

TEST_F(Strangers, LearnNothingFromARankThatCallsThem) {
  Impostor impostor;
  Secret secret;
  fillRandom(secret);
  Outcome outcome;
  std::thread rank(
      [&] { outcome = test::outcomeOf([&] { join(impostor.id(secret), 2, 0, 500); }); });
  std::string heard;
  {
    const Socket socket = impostor.accept();
    Challenge challenge{kChallengeMagic, {}, {}};
    say(socket, &challenge, sizeof challenge);
    bool closed = false;
    heard = hear(socket, 2000, &closed);
    EXPECT_TRUE(closed);
  }
  rank.join();
  // A greeting and nothing else.
  EXPECT_EQ(heard.size(), sizeof(Greeting));
  EXPECT_EQ(heard.find(std::string(reinterpret_cast<char*>(secret.data()), 8)), heard.npos);
  EXPECT_NE(outcome.text.find("another rendezvous listens there"), std::string::npos)
      << outcome.text;
}

TEST_F(Strangers, AnEchoIsNoRendezvous) {
  Impostor impostor;
  Outcome outcome;
  std::thread rank([&] { outcome = test::outcomeOf([&] { join(impostor.id({}), 2, 0, 500); }); });
  {
    const Socket socket = impostor.accept();
    bool closed = false;
    const std::string heard = hear(socket, 100, &closed);
    say(socket, heard.data(), heard.size());
    hear(socket, 2000, &closed);
    EXPECT_TRUE(closed);
  }
  rank.join();
  EXPECT_NE(outcome.text.find("something else listens there"), std::string::npos) << outcome.text;
}

TEST_F(Strangers, ASilentListenerIsATimeout) {
  Impostor impostor;
  const Outcome outcome = test::outcomeOf([&] { join(impostor.id({}), 2, 0, 300); });
  expectFailure(outcome, moecclTimeout, "no answer for this id within 300 ms: 127.0.0.1:");
  expectFailure(outcome, moecclTimeout, "connected, but no answer");
}

}  // namespace
}  // namespace moeccl
