// One socket between two ranks: how it comes about, and frames on it. It does what can be done
// without waiting; the transport watches it, and deals with its end.
//
//   dialed    pausing ─▶ connecting ─▶ proving ─▶ unwelcomed ─▶ open ─▶ ended
//                ▲            │           │           │
//                └────────────┴───────────┴───────────┘   closed early: tried again
//   accepted                                              open ─▶ ended
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/bootstrap/clock.h"
#include "src/bootstrap/handshake.h"
#include "src/bootstrap/socket.h"
#include "src/exec/tcp_peer.h"

namespace moeccl {

class TcpConnection {
  // Bytes of frames without data that may wait to leave. More cost an allocation.
  static constexpr std::size_t kControlBytes = 64 * sizeof(FrameHeader);

 public:
  enum class Stage { pausing, connecting, proving, unwelcomed, open, ended };

  // The `index`-th of those to the peer; 0 is the main one.
  TcpConnection(TcpCommon& common, TcpPeer& peer, int index)
      : common_(common), peer_(peer), index_(index) {
    // Both, for they are swapped: frames wait in one while those of the other leave.
    for (std::vector<std::byte>* control : {&control_, &peer.control()})
      if (index == 0) control->reserve(kControlBytes);
  }

  TcpPeer& peer() { return peer_; }
  int index() const { return index_; }
  Stage stage() const { return stage_; }
  const Socket& socket() const { return socket_; }
  // Why it ended, and whether that is the peer's end too: where not, it may be dialed again.
  const std::string& why() const { return why_; }
  bool isFinal() const { return final_; }
  // Whether this process could not make it, whatever the peer does.
  bool isOwnFault() const { return ownFault_; }
  // When a pausing one is to be dialed.
  TimePoint next() const { return next_; }

  void dial(const IpAddress& address, std::uint16_t port);
  void accept(Socket socket);
  // The kernel's news of it: epoll's, edge-triggered.
  void onEvents(std::uint32_t events, const Secret& secret, const Hello& hello);
  // Pauses until next().
  void pause();
  // Ends what is not open.
  void abandon(const std::string& why) { end(why, true); }

  // Whether advance() would do something.
  bool isReady() const;
  // Reads and writes what it can, but not for ever; returns whether anything moved.
  bool advance();
  bool write();
  // Copies the rest of this transfer's data that are being written, so that the caller gets them
  // back.
  void keepCopy(const Transfer* transfer);
  // Whether all that it has begun is written.
  bool hasWritten() const {
    return frameBegin_ == frameEnd_ && dataLeft_ == 0 && controlBegin_ == control_.size();
  }
  // Ends its own direction: it writes nothing any more, and goes on reading.
  void finishWriting();
  // Whether a part of a message waits that had not begun when it came.
  bool isEarly() const { return early_; }
  void retryEarly() {
    early_ = false;
    readable_ = true;
  }

  bool listed = false;  // among those that the transport will advance

 private:
  bool read();
  std::size_t readSome();
  void consume();
  bool take(const FrameHeader& header);
  std::span<std::byte> place();
  bool nextFrame();
  void wrote(std::size_t bytes);
  void end(const std::string& why, bool final);
  void unreached(int error);
  std::size_t ahead() const { return aheadEnd_ - aheadBegin_; }

  TcpCommon& common_;
  TcpPeer& peer_;
  const int index_;
  Stage stage_ = Stage::pausing;
  Socket socket_;
  std::optional<Handshake> handshake_;
  TimePoint next_ = TimePoint::min();
  TimePoint dialUntil_ = TimePoint::min();  // its host, while that does not answer
  std::int64_t pauseMs_ = 0;
  std::string to_, why_;
  bool final_ = false, ownFault_ = false;
  bool readable_ = false, writable_ = false, hungUp_ = false;

  // Writing: control frames, then a header, then data from the sender's memory.
  bool writing_ = false;
  std::vector<std::byte> control_;
  std::size_t controlBegin_ = 0;
  FrameHeader frame_;
  std::size_t frameBegin_ = 0, frameEnd_ = 0;
  const std::byte* data_ = nullptr;
  std::size_t dataLeft_ = 0, payload_ = 0;
  Transfer* transfer_ = nullptr;
  std::unique_ptr<std::byte[]> copy_;

  // Reading: the payload goes where it belongs, and what comes behind it into `ahead_`.
  bool early_ = false;
  std::array<std::byte, 4096> ahead_;
  std::size_t aheadBegin_ = 0, aheadEnd_ = 0;
  TcpPeer::Incoming incoming_;
};

}  // namespace moeccl
