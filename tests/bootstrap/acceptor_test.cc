// Who gets in at a rank's port, and what it costs that others knock.
#include "src/bootstrap/acceptor.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <memory>

#include "src/base/text.h"
#include "tests/bootstrap/support.h"

namespace moeccl {
namespace {

using namespace std::chrono_literals;
using test::connectTo;
using test::kLoopback;

const Secret kSecret{std::byte{1}}, kOther{std::byte{2}};

// Whether the other end has closed it, or does within `ms`.
bool isClosed(const Socket& socket, int ms) {
  for (char byte;;) {
    pollfd polled{socket.get(), POLLIN, 0};
    if (poll(&polled, 1, ms) <= 0) return false;
    if (recv(socket.get(), &byte, 1, 0) <= 0) return true;
  }
}

class Knocking {
 public:
  Knocking(std::uint16_t port, const Secret& secret, std::uint32_t rank)
      : socket_(connectTo(port)), handshake_(Handshake::dialer(secret, {rank, 1, 0})) {}

  bool step() { return advance(handshake_, socket_); }
  Handshake::State state() const { return handshake_.state(); }
  const Socket& socket() const { return socket_; }

 private:
  Socket socket_;
  Handshake handshake_;
};

class AcceptorTest : public test::LeaklessTest {};

// Serves until `holds`.
bool serveUntil(Acceptor& acceptor, const std::function<bool()>& holds) {
  return test::eventually([&] {
    acceptor.serve();
    return holds();
  });
}

TEST_F(AcceptorTest, RanksOfTheJobGetIn) {
  Acceptor acceptor(kSecret);
  const std::uint16_t port = acceptor.listen(kLoopback);
  pollfd polled{acceptor.fd(), POLLIN, 0};
  EXPECT_EQ(poll(&polled, 1, 0), 0);
  std::vector<std::unique_ptr<Knocking>> ranks;
  for (std::uint32_t rank = 0; rank < 20; ++rank)
    ranks.push_back(std::make_unique<Knocking>(port, kSecret, rank));
  EXPECT_EQ(poll(&polled, 1, 5000), 1);
  std::vector<bool> seen(ranks.size());
  std::size_t count = 0;
  EXPECT_TRUE(serveUntil(acceptor, [&] {
    for (const auto& each : ranks) EXPECT_TRUE(each->step());
    for (Acceptor::Guest guest; acceptor.next(&guest); ++count) {
      EXPECT_EQ(guest.hello.purpose, 1u);
      EXPECT_FALSE(seen.at(guest.hello.rank));
      seen[guest.hello.rank] = true;
      // It is that rank's connection, and nothing of what follows has been read.
      EXPECT_EQ(send(ranks[guest.hello.rank]->socket().get(), "x", 1, 0), 1);
      pollfd readable{guest.socket.get(), POLLIN, 0};
      EXPECT_EQ(poll(&readable, 1, 5000), 1);
      char byte = 0;
      EXPECT_EQ(recv(guest.socket.get(), &byte, 1, 0), 1);
      EXPECT_EQ(byte, 'x');
    }
    return count == ranks.size();
  }));
  EXPECT_EQ(acceptor.nextDeadline(), kNever);
}

TEST_F(AcceptorTest, StrangersDoNot) {
  Acceptor acceptor(kSecret);
  const std::uint16_t port = acceptor.listen(kLoopback);
  Knocking other(port, kOther, 0);
  const Socket http = connectTo(port);
  ASSERT_EQ(send(http.get(), "GET / HTTP/1.1\r\n\r\n", 18, 0), 18);
  bool otherEnded = false;
  EXPECT_TRUE(serveUntil(acceptor, [&] {
    otherEnded |= !other.step();
    return otherEnded && isClosed(http, 0);
  }));
  EXPECT_EQ(other.state(), Handshake::State::refused);
  Acceptor::Guest guest;
  EXPECT_FALSE(acceptor.next(&guest));
}

TEST_F(AcceptorTest, SilenceEndsAtItsDeadline) {
  Acceptor acceptor(kSecret, {.handshakeMs = 100});
  const Socket silent = connectTo(acceptor.listen(kLoopback));
  acceptor.serve();
  EXPECT_TRUE(test::eventually([&] {
    acceptor.serve();
    return acceptor.nextDeadline() != kNever;
  }));
  EXPECT_FALSE(isClosed(silent, 0));
  EXPECT_TRUE(serveUntil(acceptor, [&] { return isClosed(silent, 0); }));
  EXPECT_EQ(acceptor.nextDeadline(), kNever);
}

// The rank has not looked at its port for long, so that all have come before it accepts.
TEST_F(AcceptorTest, ACrowdKeepsNobodyOut) {
  Acceptor acceptor(kSecret, {.maxStrangers = 8});
  const std::uint16_t port = acceptor.listen(kLoopback);
  std::vector<Socket> crowd;
  for (int i = 0; i < 150; ++i) crowd.push_back(connectTo(port));
  Knocking rank(port, kSecret, 5);
  EXPECT_TRUE(rank.step());
  for (int i = 0; i < 150; ++i) crowd.push_back(connectTo(port));
  Acceptor::Guest guest;
  EXPECT_TRUE(serveUntil(acceptor, [&] {
    EXPECT_TRUE(rank.step());
    return acceptor.next(&guest);
  }));
  EXPECT_EQ(guest.hello.rank, 5u);
  EXPECT_TRUE(serveUntil(acceptor, [&] {
    int open = 0;
    for (const Socket& socket : crowd) open += !isClosed(socket, 0);
    return open <= 8;
  }));
}

TEST_F(AcceptorTest, OnSeveralAddresses) {
  Acceptor acceptor(kSecret);
  IpAddress six{AF_INET6};
  six.bytes[15] = 1;
  std::uint16_t second = 0;
  const std::uint16_t first = acceptor.listen(kLoopback);
  try {
    second = acceptor.listen(six);
  } catch (const Error&) {
    GTEST_SKIP() << "no IPv6 here";
  }
  const Socket a = connectTo(first), b = connectTo(second, six);
  for (const Socket* each : {&a, &b}) {
    Handshake dialer = Handshake::dialer(kSecret, {1, 1, 0});
    Acceptor::Guest guest;
    EXPECT_TRUE(
        serveUntil(acceptor, [&] { return advance(dialer, *each) && acceptor.next(&guest); }));
  }
}

}  // namespace
}  // namespace moeccl
