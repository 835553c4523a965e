// The messages of a control connection that breaks again and again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "src/watch/control_stream.h"

namespace moeccl {
namespace {

using Header = ControlStream::Header;

constexpr std::size_t kLongest = std::size_t{1} << 16;

// One of two ends: it sends messages that are numbered from 1 on, and expects the same.
struct End {
  ControlStream stream{kLongest};
  std::uint64_t sent = 0, got = 0;

  void say(std::size_t bytes) {
    ++sent;
    const std::vector<std::byte> body(bytes, static_cast<std::byte>(sent));
    stream.send({1, 0, sent, bytes}, body);
  }
  bool hear(std::span<const std::byte> bytes) {
    return stream.received(bytes, [this](const Header& header, std::span<const std::byte> body) {
      EXPECT_EQ(header.sequence, ++got);
      return std::ranges::all_of(
          body, [&](std::byte each) { return each == static_cast<std::byte>(header.sequence); });
    });
  }
};

// Moves at most so many bytes; returns how many.
std::size_t move(End& from, End& to, std::size_t most) {
  const auto bytes = from.stream.toSend().first(std::min(most, from.stream.toSend().size()));
  const std::vector<std::byte> copy(bytes.begin(), bytes.end());
  from.stream.sent(copy.size());
  EXPECT_TRUE(to.hear(copy));
  return copy.size();
}

void moveAll(End& a, End& b) {
  while (move(a, b, kLongest) + move(b, a, kLongest) > 0) {
  }
}

void renew(End& a, End& b) {
  a.stream.renew();
  b.stream.renew();
}

void expectAll(const End& a, const End& b) {
  EXPECT_EQ(a.got, b.sent);
  EXPECT_EQ(b.got, a.sent);
}

TEST(ControlStream, LosesNothingWhereverItIsCut) {
  const std::size_t all = 3 * sizeof(Header) + 0 + 7 + 40;
  for (std::size_t at = 0; at <= all; ++at)
    for (const std::size_t lost : {std::size_t{0}, std::size_t{5}}) {
      End a, b;
      for (const std::size_t bytes : {0, 7, 40}) a.say(bytes);
      b.say(3);
      EXPECT_EQ(move(a, b, at), at);
      // On their way when the connection breaks.
      const std::size_t rest = std::min(lost, a.stream.toSend().size());
      a.stream.sent(rest);
      a.stream.broke();
      a.say(1);
      renew(a, b);
      b.say(2);
      moveAll(a, b);
      expectAll(a, b);
    }
}

TEST(ControlStream, LosesNothingWhereTheNewConnectionsBreakToo) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    End a, b;
    for (int step = 0; step < 100; ++step) {
      (random() % 2 ? a : b).say(random() % 10 == 0 ? 6000 : random() % 50);
      move(a, b, random() % 5000);
      move(b, a, random() % 5000);
      if (random() % 8 == 0) renew(a, b);
    }
    moveAll(a, b);
    expectAll(a, b);
  }
}

// More than its peer's kernel has room for.
TEST(ControlStream, SendsNoMoreThanThePeerHasRoomFor) {
  End a, b;
  std::size_t moved = 0;
  for (int i = 0; i < 1000; ++i) {
    a.say(100);
    moved += a.stream.toSend().size();
    a.stream.sent(a.stream.toSend().size());
  }
  EXPECT_LE(moved, ControlStream::kUnread);
  renew(a, b);
  moveAll(a, b);
  expectAll(a, b);
}

TEST(ControlStream, RefusesWhatIsNoMessage) {
  const auto bytesOf = [](const Header& header) {
    const auto bytes = std::as_bytes(std::span(&header, 1));
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  // Too long; more read than was sent; a part of a message; a new beginning in the middle.
  for (const Header& wrong : {Header{1, 0, 1, kLongest + 1}, Header{4, 0, 1000, 0},
                              Header{4, 0, 1, 0}, Header{4, 0, 0, 1}, Header{5, 0, 0, 0}}) {
    End end;
    end.say(9);
    EXPECT_FALSE(end.hear(bytesOf(wrong))) << wrong.kind << " " << wrong.sequence;
  }
  // Anything but how much the peer has; more than was sent.
  for (const Header& wrong : {Header{1, 0, 1, 0}, Header{4, 0, 0, 0}, Header{5, 0, 1000, 0}}) {
    End end;
    end.say(9);
    end.stream.renew();
    EXPECT_FALSE(end.hear(bytesOf(wrong))) << wrong.kind << " " << wrong.sequence;
  }
}

}  // namespace
}  // namespace moeccl
