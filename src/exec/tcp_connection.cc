// Writes frames together with the sender's data, and reads data straight to where they belong, each
// with one call to the kernel.
#include "src/exec/tcp_connection.h"

#include <sys/epoll.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "src/base/text.h"
#include "src/bootstrap/acceptor.h"

namespace moeccl {
namespace {

// Bytes that move in one direction before others have their turn.
constexpr std::size_t kAtOnce = 4 * kPartBytes;
constexpr std::int64_t kFirstPauseMs = 20, kLongestPauseMs = 250;

std::string text(int error) { return std::strerror(error); }

}  // namespace

void TcpConnection::dial(const IpAddress& address, std::uint16_t port) {
  if (dialUntil_ == TimePoint::min()) dialUntil_ = afterMs(common_.dialMs);
  to_ = endpointText(address, port);
  const int error = startConnect(address, port, &socket_);
  stage_ = Stage::connecting;
  ownFault_ = isOwnError(error);
  if (error != 0) unreached(error);
}

// A port that is closed has been open: addresses are handed out once it is.
void TcpConnection::unreached(int error) {
  const bool mayAnswer = meansHostIsGone(error) && !isPast(dialUntil_);
  end("connecting to " + to_ + ": " + text(error), !mayAnswer && error != ECONNRESET);
}

void TcpConnection::accept(Socket socket) {
  socket_ = std::move(socket);
  stage_ = Stage::open;
  frame_ = {.kind = FrameKind::welcome};
  frameBegin_ = 0;
  frameEnd_ = sizeof frame_;
  readable_ = writable_ = true;
}

void TcpConnection::onEvents(std::uint32_t events, const Secret& secret, const Hello& hello) {
  if (stage_ == Stage::connecting) {
    if (const int error = connectResult(socket_)) return unreached(error);
    tuneConnection(socket_);
    handshake_.emplace(Handshake::dialer(secret, hello));
    stage_ = Stage::proving;
  }
  if (stage_ == Stage::proving) {
    if (!moeccl::advance(*handshake_, socket_)) {
      const bool refused = handshake_->state() == Handshake::State::refused;
      return end(refused ? "something else listens at its address" : "it closes connections",
                 refused);
    }
    if (handshake_->state() != Handshake::State::done) return;
    handshake_.reset();
    stage_ = Stage::unwelcomed;
    readable_ = writable_ = true;
    return;
  }
  if ((events & ~std::uint32_t{EPOLLOUT}) != 0) readable_ = true;
  if ((events & EPOLLOUT) != 0) writable_ = true;
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) hungUp_ = true;
}

void TcpConnection::pause() {
  stage_ = Stage::pausing;
  socket_ = Socket();
  readable_ = writable_ = hungUp_ = false;
  aheadBegin_ = aheadEnd_ = 0;
  pauseMs_ = std::clamp(2 * pauseMs_, kFirstPauseMs, kLongestPauseMs);
  next_ = afterMs(pauseMs_);
}

void TcpConnection::end(const std::string& why, bool final) {
  if (stage_ == Stage::ended) return;
  // Until the pair has this connection, another may become it.
  final_ = final || stage_ == Stage::open;
  stage_ = Stage::ended;
  why_ = why;
}

bool TcpConnection::isReady() const {
  if (stage_ == Stage::ended) return true;
  if (readable_ && !early_ && stage_ >= Stage::unwelcomed) return true;
  return stage_ == Stage::open && writable_ && (!hasWritten() || peer_.hasOutput(index_ == 0));
}

bool TcpConnection::advance() {
  const bool got = read();
  return write() || got;
}

// ------------------------------------------------------------------------------------- writing

bool TcpConnection::write() {
  // From a completion, within another write() of this connection: that one goes on.
  if (writing_ || stage_ != Stage::open) return false;
  writing_ = true;
  std::size_t moved = 0;
  while (writable_ && moved < kAtOnce) {
    if (hasWritten() && !nextFrame()) break;
    iovec pieces[3];
    int count = 0;
    const auto add = [&](const void* from, std::size_t bytes) {
      if (bytes > 0) pieces[count++] = {const_cast<void*>(from), bytes};
    };
    add(control_.data() + controlBegin_, control_.size() - controlBegin_);
    add(reinterpret_cast<const std::byte*>(&frame_) + frameBegin_, frameEnd_ - frameBegin_);
    add(data_, dataLeft_);
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = static_cast<std::size_t>(count);
    const std::size_t total = control_.size() - controlBegin_ + frameEnd_ - frameBegin_ + dataLeft_;
    const ssize_t sent = sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      writable_ = false;
      // What the peer has sent before its end is still to be read; that finds the end, too.
      if (errno != EAGAIN) readable_ = hungUp_ = true;
      break;
    }
    if (static_cast<std::size_t>(sent) < total) writable_ = false;
    moved += static_cast<std::size_t>(sent);
    wrote(static_cast<std::size_t>(sent));
  }
  writing_ = false;
  return moved > 0;
}

bool TcpConnection::nextFrame() {
  const bool main = index_ == 0;
  control_.clear();
  controlBegin_ = 0;
  if (main && !peer_.control().empty()) control_.swap(peer_.control());
  TcpPeer::Outgoing out;
  if (peer_.pull(main, &out)) {
    frame_ = out.header;
    frameBegin_ = 0;
    frameEnd_ = sizeof frame_;
    data_ = out.data;
    transfer_ = out.transfer;
    dataLeft_ = payload_ = frame_.payload;
  }
  return !hasWritten();
}

void TcpConnection::wrote(std::size_t bytes) {
  const auto pass = [&](std::size_t left) {
    const std::size_t now = std::min(bytes, left);
    bytes -= now;
    return now;
  };
  controlBegin_ += pass(control_.size() - controlBegin_);
  frameBegin_ += pass(frameEnd_ - frameBegin_);
  const std::size_t data = pass(dataLeft_);
  data_ += data;
  dataLeft_ -= data;
  if (!hasWritten()) return;
  copy_.reset();
  if (Transfer* const transfer = std::exchange(transfer_, nullptr))
    peer_.written(transfer, payload_);
}

void TcpConnection::keepCopy(const Transfer* transfer) {
  if (transfer_ != transfer) return;
  transfer_ = nullptr;
  if (dataLeft_ == 0) return;
  copy_.reset(new (std::nothrow) std::byte[dataLeft_]);
  if (!copy_) {
    dataLeft_ = 0;
    return end("no memory to end a cancelled message", true);
  }
  std::memcpy(copy_.get(), data_, dataLeft_);
  data_ = copy_.get();
}

void TcpConnection::finishWriting() {
  writable_ = false;
  ::shutdown(socket_.get(), SHUT_WR);
}

// ------------------------------------------------------------------------------------- reading

bool TcpConnection::read() {
  std::size_t moved = 0;
  const auto canRead = [this] {
    return readable_ && !early_ && (stage_ == Stage::unwelcomed || stage_ == Stage::open);
  };
  try {
    if (canRead()) consume();
    while (canRead() && moved < kAtOnce) moved += readSome();
    if (moved > 0 && stage_ == Stage::open) peer_.giveCreditBack();
  } catch (const std::bad_alloc&) {
    end("no memory for what it sends", true);
  }
  return moved > 0;
}

// Reads what one call to the kernel brings; returns its bytes.
std::size_t TcpConnection::readSome() {
  if (aheadBegin_ > 0) {
    std::memmove(ahead_.data(), ahead_.data() + aheadBegin_, ahead());
    aheadEnd_ = ahead();
    aheadBegin_ = 0;
  }
  const std::span<std::byte> payload = place();
  iovec pieces[2];
  int count = 0;
  if (!payload.empty()) pieces[count++] = {payload.data(), payload.size()};
  std::size_t total = payload.size();
  // Where a place ends before its part, what comes next is more of the part.
  if (payload.size() == incoming_.left) {
    pieces[count++] = {ahead_.data() + aheadEnd_, ahead_.size() - aheadEnd_};
    total += ahead_.size() - aheadEnd_;
  }
  const ssize_t got = readv(socket_.get(), pieces, count);
  if (got < 0 && errno == EINTR) return 0;
  if (got < 0 && errno == EAGAIN) readable_ = false;
  if (got < 0 && errno != EAGAIN) end(text(errno), false);
  if (got == 0) end(peer_.isLeaving() ? "it has left" : "the connection was closed", false);
  if (got <= 0) return 0;
  const auto bytes = static_cast<std::size_t>(got);
  if (bytes < total && !hungUp_) readable_ = false;
  const std::size_t now = std::min(bytes, payload.size());
  aheadEnd_ += bytes - now;
  if (now > 0) peer_.arrived(&incoming_, now);
  consume();
  return bytes;
}

// Where the next bytes of the payload at hand belong.
std::span<std::byte> TcpConnection::place() {
  return incoming_.left > 0 ? peer_.placeOf(incoming_) : std::span<std::byte>();
}

// Goes through what has been read ahead, as far as it can.
void TcpConnection::consume() {
  for (;;) {
    if (const std::span<std::byte> payload = place(); !payload.empty()) {
      const std::size_t now = std::min(payload.size(), ahead());
      if (now == 0) return;
      std::memcpy(payload.data(), ahead_.data() + aheadBegin_, now);
      aheadBegin_ += now;
      peer_.arrived(&incoming_, now);
      continue;
    }
    FrameHeader header;
    if (ahead() < sizeof header) return;
    std::memcpy(&header, ahead_.data() + aheadBegin_, sizeof header);
    if (!take(header)) return;
    aheadBegin_ += sizeof header;
  }
}

bool TcpConnection::take(const FrameHeader& header) {
  const auto bad = [&] {
    end(stringf("it sent a frame of kind %u, %u bytes, that does not belong here",
                static_cast<unsigned>(header.kind), header.payload),
        true);
    return false;
  };
  if ((header.kind == FrameKind::welcome) != (stage_ == Stage::unwelcomed)) return bad();
  switch (header.kind) {
    case FrameKind::welcome:
      if (header.payload != 0) return bad();
      stage_ = Stage::open;
      return true;
    case FrameKind::barrier:
      if (header.payload != 0 || header.value >= common_.barrier.size()) return bad();
      common_.barrier.set(header.value);
      return true;
    case FrameKind::goodbye:
      if (header.payload != 0) return bad();
      peer_.leaves();
      return true;
    default:
      break;
  }
  incoming_.left = 0;
  switch (peer_.take(header, index_ == 0, &incoming_)) {
    case TcpPeer::Verdict::taken:
      return true;
    case TcpPeer::Verdict::early:
      early_ = true;
      return false;
    case TcpPeer::Verdict::bad:
      break;
  }
  return bad();
}

}  // namespace moeccl
