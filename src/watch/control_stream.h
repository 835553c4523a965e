// The messages that two ranks send each other over their control connection: each arrives once and
// in order, also where one connection after the other breaks. So each end keeps what it has sent
// until the peer has told that it has read that. On a new connection both first tell how much they
// have, and each sends the rest again.
//
// A value that does no I/O. Its owner sends what toSend() has and calls sent(), and gives what
// comes to received(). Where memory is short it waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

namespace moeccl {

class ControlStream {
 public:
  using Bytes = std::vector<std::byte>;

  struct Header {
    std::uint32_t kind;   // a Watch::Kind, or one of this class
    std::int32_t origin;  // rank that has sent the message first
    std::uint64_t sequence;
    std::uint64_t bytes;  // of the body, which follows
  };

  // Bytes that a peer may have unread. Its kernel has room for them while the peer is stopped. So
  // TCP, which takes a full buffer for a host that does not answer, never waits.
  static constexpr std::size_t kUnread = std::size_t{16} << 10;

  // `longest`: bytes that a body may have.
  explicit ControlStream(std::size_t longest) : longest_(longest) {}

  void send(const Header& header, std::span<const std::byte> body);
  // All goes on its way, whatever the peer has read.
  void sendRest() { fill(true); }
  std::span<const std::byte> toSend() const { return std::span(out_).subspan(sent_); }
  void sent(std::size_t bytes);

  // Calls `take` with each message that is whole now, but those of this class. Returns false where
  // the peer sends what is no message, or `take` says so.
  using Take = std::function<bool(const Header& header, std::span<const std::byte> body)>;
  bool received(std::span<const std::byte> bytes, const Take& take);

  // The connection has broken. Once there is another, renew() begins it.
  void broke();
  void renew();
  // The peer has not told yet how much it has.
  bool renewing() const { return renewing_; }
  // Nothing will be sent any more.
  void end();

 private:
  static constexpr std::uint32_t kRead = 4;    // `sequence`: bytes read since the last one
  static constexpr std::uint32_t kResume = 5;  // `sequence`: bytes read of all connections

  void fill(bool all);
  void put(std::uint32_t kind, std::uint64_t count);
  bool receivedOwn(const Header& header);
  bool acknowledge(std::uint64_t bytes);

  const std::size_t longest_;
  Bytes in_, out_;
  std::size_t sent_ = 0;                   // of out_
  std::deque<Bytes> waiting_;              // messages that the peer has no room for
  std::deque<Bytes> kept_;                 // those in out_, or sent, as far as the peer has told
  std::size_t unread_ = 0;                 // bytes of kept_
  std::uint64_t acknowledged_ = 0;         // bytes of messages that the peer has read
  std::uint64_t read_ = 0, reported_ = 0;  // bytes of the peer's messages: read, and told so
  bool renewing_ = false;
};

}  // namespace moeccl
