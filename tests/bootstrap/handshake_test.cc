// The handshake without sockets: who proves what, and what is refused.
#include "src/bootstrap/handshake.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string_view>
#include <vector>

namespace moeccl {
namespace {

using State = Handshake::State;
using Bytes = std::vector<std::byte>;

Secret secretOf(int seed) {
  Secret secret{};
  secret[0] = static_cast<std::byte>(seed);
  return secret;
}

const Secret kSecret = secretOf(7);
const Hello kHello{3, static_cast<std::uint32_t>(ConnectionPurpose::data), 1};

// What `from` has to say, as it leaves on a connection.
Bytes take(Handshake& from) {
  const Bytes bytes(from.toSend().begin(), from.toSend().end());
  from.sent(bytes.size());
  return bytes;
}

// Gives `bytes` to `to`, at most `step` at a time, as far as it wants them; returns how many it
// took.
std::size_t give(Handshake& to, std::span<const std::byte> bytes, std::size_t step = SIZE_MAX) {
  std::size_t given = 0;
  while (given < bytes.size() && to.wanted() > 0) {
    const std::size_t now = std::min({step, to.wanted(), bytes.size() - given});
    to.received(bytes.subspan(given, now));
    given += now;
  }
  return given;
}

// Lets the two talk until neither has anything to say.
void talk(Handshake& a, Handshake& b, std::size_t step = SIZE_MAX) {
  for (bool more = true; more;) {
    const Bytes fromA = take(a), fromB = take(b);
    give(b, fromA, step);
    give(a, fromB, step);
    more = !fromA.empty() || !fromB.empty();
  }
}

TEST(Handshake, BothEndsProveThemselves) {
  for (std::size_t step : {std::size_t{1}, std::size_t{7}, SIZE_MAX}) {
    Handshake dialer = Handshake::dialer(kSecret, kHello), acceptor = Handshake::acceptor(kSecret);
    EXPECT_EQ(dialer.state(), State::running);
    EXPECT_EQ(acceptor.state(), State::running);
    talk(dialer, acceptor, step);
    EXPECT_EQ(dialer.state(), State::done);
    EXPECT_EQ(acceptor.state(), State::done);
    EXPECT_EQ(acceptor.peer(), kHello);
    EXPECT_EQ(dialer.wanted(), 0u);
    EXPECT_EQ(acceptor.wanted(), 0u);
  }
}

TEST(Handshake, WantsNothingBeyondItself) {
  Handshake dialer = Handshake::dialer(kSecret, kHello), acceptor = Handshake::acceptor(kSecret);
  give(acceptor, take(dialer));
  Bytes challenge = take(acceptor);
  const std::size_t whole = challenge.size();
  challenge.resize(whole + 100);
  EXPECT_EQ(give(dialer, challenge), whole);
  EXPECT_EQ(dialer.state(), State::running);  // its answer has not left
  Bytes answer = take(dialer);
  EXPECT_EQ(dialer.state(), State::done);
  const std::size_t last = answer.size();
  answer.resize(last + 100);
  EXPECT_EQ(give(acceptor, answer), last);
  EXPECT_EQ(acceptor.state(), State::done);
}

TEST(Handshake, AnotherSecretIsRefusedByEitherEnd) {
  Handshake dialer = Handshake::dialer(secretOf(8), kHello),
            acceptor = Handshake::acceptor(kSecret);
  talk(dialer, acceptor);
  EXPECT_EQ(dialer.state(), State::refused);  // without an answer
  EXPECT_EQ(acceptor.state(), State::running);

  // One that knows the protocol, does not check its peer and answers.
  Handshake honest = Handshake::dialer(kSecret, kHello), victim = Handshake::acceptor(kSecret);
  give(victim, take(honest));
  give(honest, take(victim));
  Bytes forged = take(honest);
  forged.back() ^= std::byte{1};
  give(victim, forged);
  EXPECT_EQ(victim.state(), State::refused);
  EXPECT_TRUE(victim.toSend().empty());
  EXPECT_EQ(victim.wanted(), 0u);
}

TEST(Handshake, AnAnswerForOtherWordsIsRefused) {
  Handshake dialer = Handshake::dialer(kSecret, kHello), acceptor = Handshake::acceptor(kSecret);
  give(acceptor, take(dialer));
  give(dialer, take(acceptor));
  Bytes answer = take(dialer);
  answer[0] ^= std::byte{1};  // another rank
  give(acceptor, answer);
  EXPECT_EQ(acceptor.state(), State::refused);
}

TEST(Handshake, OneSidesWordsAreNoneOfTheOthers) {
  // An echo.
  Handshake dialer = Handshake::dialer(kSecret, kHello);
  give(dialer, take(dialer));
  EXPECT_EQ(dialer.state(), State::refused);
  // What the acceptor has proved, as an answer.
  Handshake honest = Handshake::dialer(kSecret, kHello), acceptor = Handshake::acceptor(kSecret);
  give(acceptor, take(honest));
  const Bytes challenge = take(acceptor);
  Bytes answer(sizeof kHello);
  std::memcpy(answer.data(), &kHello, sizeof kHello);
  answer.insert(answer.end(), challenge.end() - sizeof(Digest), challenge.end());
  EXPECT_EQ(give(acceptor, answer), answer.size());
  EXPECT_EQ(acceptor.state(), State::refused);
}

TEST(Handshake, ARecordedOneServesOnce) {
  Handshake dialer = Handshake::dialer(kSecret, kHello), acceptor = Handshake::acceptor(kSecret);
  const Bytes greeting = take(dialer);
  give(acceptor, greeting);
  const Bytes challenge = take(acceptor);
  give(dialer, challenge);
  const Bytes answer = take(dialer);
  give(acceptor, answer);
  ASSERT_EQ(acceptor.state(), State::done);

  Handshake again = Handshake::acceptor(kSecret);
  give(again, greeting);
  take(again);
  give(again, answer);
  EXPECT_EQ(again.state(), State::refused);
  Handshake other = Handshake::dialer(kSecret, kHello);
  take(other);
  give(other, challenge);
  EXPECT_EQ(other.state(), State::refused);
}

TEST(Handshake, GarbageIsRefusedByItsFirstBytes) {
  const std::string_view http = "GET / HTTP/1.1\r\n";
  Handshake acceptor = Handshake::acceptor(kSecret);
  EXPECT_EQ(give(acceptor, std::as_bytes(std::span(http)), 1), 1u);
  EXPECT_EQ(acceptor.state(), State::refused);
  std::mt19937 random(1);
  for (int i = 0; i < 1000; ++i) {
    Bytes garbage(200);
    for (std::byte& byte : garbage) byte = static_cast<std::byte>(random());
    if (i % 2 == 1) {  // with the right beginning
      Handshake dialer = Handshake::dialer(kSecret, kHello);
      std::ranges::copy(dialer.toSend().first(8), garbage.begin());
    }
    Handshake victim = Handshake::acceptor(kSecret);
    give(victim, garbage, 1 + random() % 50);
    EXPECT_EQ(victim.state(), State::refused);
  }
}

}  // namespace
}  // namespace moeccl
