// Makes and checks the messages and proofs of either side.
#include "src/bootstrap/handshake.h"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace moeccl {
namespace {

constexpr char kVersion = 1;
constexpr Magic kGreetingOfRank = {'m', 'o', 'e', 'c', 'c', 'l', '>', kVersion};
constexpr Magic kChallengeOfRank = {'m', 'o', 'e', 'c', 'c', 'l', '<', kVersion};

Digest acceptorProof(const Secret& secret, const Nonce& dialer, const Nonce& acceptor) {
  constexpr std::string_view kLabel = "moeccl connection, acceptor";
  return hmacSha256(secret, {std::as_bytes(std::span(kLabel)), dialer, acceptor});
}

Digest dialerProof(const Secret& secret, const Nonce& dialer, const Nonce& acceptor,
                   const Hello& hello) {
  constexpr std::string_view kLabel = "moeccl connection, dialer";
  return hmacSha256(secret, {std::as_bytes(std::span(kLabel)), dialer, acceptor,
                             std::as_bytes(std::span(&hello, 1))});
}

}  // namespace

Handshake::Handshake(const Secret& secret) : secret_(secret) {}

Handshake Handshake::dialer(const Secret& secret, const Hello& hello) {
  Handshake handshake(secret);
  handshake.hello_ = hello;
  fillRandom(handshake.dialers_);
  handshake.send(Greeting{kGreetingOfRank, handshake.dialers_});
  handshake.next_ = &Handshake::onChallenge;
  handshake.magic_ = &kChallengeOfRank;
  handshake.await(sizeof(Challenge));
  return handshake;
}

Handshake Handshake::acceptor(const Secret& secret) {
  Handshake handshake(secret);
  handshake.next_ = &Handshake::onGreeting;
  handshake.magic_ = &kGreetingOfRank;
  handshake.await(sizeof(Greeting));
  return handshake;
}

template <typename Message>
void Handshake::send(const Message& message) {
  static_assert(sizeof message <= sizeof out_);
  std::memcpy(out_.data(), &message, sizeof message);
  sendBegin_ = 0;
  sendEnd_ = sizeof message;
}

template <typename Message>
Message Handshake::received() const {
  Message message;
  std::memcpy(&message, in_.data(), sizeof message);
  return message;
}

void Handshake::await(std::size_t bytes) {
  have_ = 0;
  size_ = bytes;
}

std::span<const std::byte> Handshake::toSend() const {
  if (refused_) return {};
  return std::span(out_).subspan(sendBegin_, sendEnd_ - sendBegin_);
}

Handshake::State Handshake::state() const {
  if (refused_) return State::refused;
  return size_ == 0 && sendBegin_ == sendEnd_ ? State::done : State::running;
}

void Handshake::received(std::span<const std::byte> bytes) {
  bytes = bytes.first(std::min(bytes.size(), wanted()));
  std::ranges::copy(bytes, in_.begin() + static_cast<std::ptrdiff_t>(have_));
  have_ += bytes.size();
  // Whoever begins otherwise need not go on.
  if (magic_ != nullptr &&
      std::memcmp(in_.data(), magic_->data(), std::min(have_, magic_->size())) != 0)
    refused_ = true;
  if (!refused_ && size_ > 0 && have_ == size_) (this->*next_)();
}

void Handshake::onGreeting() {
  dialers_ = received<Greeting>().nonce;
  fillRandom(acceptors_);
  send(Challenge{kChallengeOfRank, acceptors_, acceptorProof(secret_, dialers_, acceptors_)});
  next_ = &Handshake::onAnswer;
  magic_ = nullptr;
  await(sizeof(Answer));
}

void Handshake::onChallenge() {
  const auto challenge = received<Challenge>();
  acceptors_ = challenge.nonce;
  refused_ = !equalInConstantTime(challenge.proof, acceptorProof(secret_, dialers_, acceptors_));
  if (refused_) return;
  send(Answer{hello_, dialerProof(secret_, dialers_, acceptors_, hello_)});
  await(0);
}

void Handshake::onAnswer() {
  const auto answer = received<Answer>();
  refused_ =
      !equalInConstantTime(answer.proof, dialerProof(secret_, dialers_, acceptors_, answer.hello));
  if (refused_) return;
  hello_ = answer.hello;
  await(0);
}

}  // namespace moeccl
