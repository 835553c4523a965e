// The end of a TCP transport.
#include <algorithm>
#include <new>
#include <utility>

#include "src/exec/tcp_transport.h"

namespace moeccl {
namespace {

// The kernel does not tell when a peer's kernel has taken what was sent.
constexpr int kLookMilliseconds = 5;

}  // namespace

template <typename Condition>
bool TcpTransport::progressUntil(Condition condition, TimePoint deadline) {
  while (!condition()) {
    if (isPast(deadline)) return false;
    whileClosing();
    if (!progress()) sleep(std::min(kLookMilliseconds, msUntil(deadline)));
  }
  return true;
}

void TcpTransport::sleep(int milliseconds) {
  if (ready_.empty() && ended_.empty() && !knocked_) collect(milliseconds);
}

void TcpTransport::tell(Peer& peer, const FrameHeader& header) {
  if (peer.core.gone()) return;
  try {
    peer.core.tell(header);
    reach(peer);
    push(peer);
  } catch (const std::bad_alloc&) {
    lose(peer, "no memory to tell it anything");
  }
}

// A dissemination barrier: in round k a rank tells the one 2^k above it and hears from the one 2^k
// below, so everybody has heard of everybody after log2(P) rounds and as many new connections.
// A rank that is gone, or has left because its own time had passed, is not waited for. What this
// rank has told is on its way: its owner may do something else for as long as it likes.
bool TcpTransport::hasMet() {
  for (;; ++round_) {
    const int distance = 1 << round_;
    if (distance >= ranks_)
      return std::ranges::all_of(peers_, [this](const auto& each) { return hasLeft(*each); });
    Peer& below = peer((rank_ - distance + ranks_) % ranks_);
    if (roundsTold_ <= round_) {
      ++roundsTold_;
      tell(peer((rank_ + distance) % ranks_),
           {.kind = FrameKind::barrier, .value = static_cast<std::uint64_t>(round_)});
      reach(below);
    }
    if (!common_.barrier.test(static_cast<std::size_t>(round_)) && !below.core.gone()) return false;
  }
}

// Whether all that there is to say to a peer is with the kernel.
bool TcpTransport::hasLeft(Peer& peer) const {
  if (peer.core.gone() || peer.core.rank() == rank_) return true;
  const auto& main = peer.connections[0];
  return peer.core.control().empty() && (!main || main->hasWritten());
}

bool TcpTransport::drained() {
  if (!std::exchange(common_.closing, true))
    for (const auto& peer : peers_) {
      peer->core.refuseAnnounced();
      push(*peer);
    }
  return common_.sends == 0;
}

bool TcpTransport::leaveInOrder(TimePoint deadline) {
  const bool sent = progressUntil([this] { return drained(); }, deadline);
  const bool met = progressUntil([this] { return hasMet(); }, deadline);
  common_.ending = true;
  for (const auto& peer : peers_)
    if (peer->reached) tell(*peer, {.kind = FrameKind::goodbye});
  progressUntil(
      [this] { return std::ranges::all_of(peers_, [this](auto& p) { return hasLeft(*p); }); },
      deadline);
  // Unread bytes would make the kernel reset the connection, and the peer lose what it has not
  // read.
  for (const auto& peer : peers_)
    for (const auto& connection : peer->connections)
      if (connection) connection->finishWriting();
  const auto isOver = [](const auto& peer) {
    return std::ranges::none_of(peer->connections, [](const auto& connection) {
      return connection && connection->stage() == TcpConnection::Stage::open;
    });
  };
  progressUntil([&] { return std::ranges::all_of(peers_, isOver); }, deadline);
  return sent && met;
}

bool TcpTransport::close(bool abrupt, int milliseconds) {
  if (closed_) return true;
  const TimePoint deadline = afterMs(milliseconds);
  bool inOrder = true;
  if (!abrupt && !peers_.empty()) inOrder = leaveInOrder(deadline);
  common_.ending = true;
  for (const auto& peer : peers_) lose(*peer, "closed");
  closed_ = true;
  acceptor_.reset();
  return inOrder;
}

}  // namespace moeccl
