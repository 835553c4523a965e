// How each end of a connection between two ranks proves that it holds the secret of their job.
//
//   dialer                                  acceptor
//    Greeting: magic, nonce        ───────▶
//                                  ◀───────  Challenge: magic, nonce, proof
//    Answer: who dials, proof      ───────▶
//
// Proofs are HMAC-SHA256 over both nonces; the two sides' differ in their label, so that neither
// can be sent back as the other. The acceptor proves itself first: who listens where a rank used to
// be learns nothing. What follows on the connection is neither encrypted nor signed (rendezvous.h).
//
// A value that does no I/O. The owner of the connection sends what toSend() has, calls sent(),
// reads no more than wanted() bytes, gives them to received(), and sets a deadline.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "src/bootstrap/rendezvous_wire.h"

namespace moeccl {

// Who dials, and for what.
struct Hello {
  std::uint32_t rank = 0;     // in the job
  std::uint32_t purpose = 0;  // a ConnectionPurpose
  std::uint32_t index = 0;    // of several connections for that purpose
  bool operator==(const Hello&) const = default;
};

enum class ConnectionPurpose : std::uint32_t { data = 1, control = 2 };

class Handshake {
 public:
  static Handshake dialer(const Secret& secret, const Hello& hello);
  static Handshake acceptor(const Secret& secret);

  std::span<const std::byte> toSend() const;
  void sent(std::size_t bytes) { sendBegin_ += bytes; }
  // Bytes that the handshake needs next; 0: none. Never more, so that nothing beyond it is read.
  std::size_t wanted() const { return state() == State::running ? size_ - have_ : 0; }
  void received(std::span<const std::byte> bytes);

  enum class State {
    running,
    done,     // the peer has proved itself, and everything is sent
    refused,  // the peer does not hold the secret, or is none of ours: close the connection
  };
  State state() const;
  // For the acceptor: whether somebody has greeted as a rank does.
  bool begun() const { return next_ != &Handshake::onGreeting; }
  // For the acceptor, once done: who has dialed. The owner checks whether that rank and purpose
  // exist, and are expected. For the dialer: its own hello.
  const Hello& peer() const { return hello_; }

 private:
  struct Greeting {
    Magic magic;
    Nonce nonce;
  };
  struct Challenge {
    Magic magic;
    Nonce nonce;
    Digest proof;
  };
  struct Answer {
    Hello hello;
    Digest proof;
  };
  static_assert(sizeof(Greeting) == 40 && sizeof(Challenge) == 72 && sizeof(Answer) == 44);

  explicit Handshake(const Secret& secret);
  template <typename Message>
  void send(const Message& message);
  template <typename Message>
  Message received() const;
  void await(std::size_t bytes);
  void onGreeting();
  void onChallenge();
  void onAnswer();

  Secret secret_;
  Hello hello_;
  Nonce dialers_{}, acceptors_{};
  std::array<std::byte, sizeof(Challenge)> in_{}, out_{};
  std::size_t have_ = 0, size_ = 0;  // of `in_`; no size: nothing is awaited
  std::size_t sendBegin_ = 0, sendEnd_ = 0;
  void (Handshake::*next_)() = nullptr;  // takes what is awaited
  const Magic* magic_ = nullptr;         // that it begins with
  bool refused_ = false;
};

}  // namespace moeccl
