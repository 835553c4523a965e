// Starts and ends transfers, advances the connections that an epoll calls ready, and settles those
// that have ended.
#include "src/exec/tcp_transport.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

#include "src/base/text.h"

namespace moeccl {
namespace {

constexpr int kEventsAtOnce = 64;
// The most rounds of reading what a peer has sent before its end.
constexpr int kLastRounds = 10000;

}  // namespace

TcpTransport::TcpTransport(int rank, int ranks, const TcpOptions& options)
    : rank_(rank),
      ranks_(ranks),
      options_(options),
      share_(options.memory / static_cast<std::size_t>(std::max(1, ranks - 1))),
      common_(options.memory),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      woken_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      sleepOn_{epoll_.get()} {
  common_.dialMs = options.dialMs;
  if (!epoll_ || !woken_ || !watch(woken_.get(), EPOLLIN, &woken_))
    throw std::runtime_error(stringf("rank %d: cannot poll: %s", rank, std::strerror(errno)));
  if (ranks < 1 || rank < 0 || rank >= ranks)
    throw std::runtime_error(
        stringf("rank %d of %d ranks: expected 0 <= rank < ranks", rank, ranks));
  if (ranks > 1 << kSourceBits)
    throw std::runtime_error(
        stringf("%d ranks: at most %d can be told apart", ranks, 1 << kSourceBits));
}

TcpTransport::~TcpTransport() { close(true, 0); }

// ------------------------------------------------------------------------------- the data path

void TcpTransport::send(int to, Tag tag, const void* data, std::size_t bytes, Transfer* transfer) {
  transfer->flight = {.carrier = this,
                      .from = static_cast<const std::byte*>(data),
                      .bytes = bytes,
                      .tag = tag,
                      .peer = to,
                      .isSend = true,
                      .inFlight = true};
  if (closed_) {
    transfer->flight.inFlight = false;
    return transfer->done(transfer, TransferStatus::cancelled, 0);
  }
  Peer& receiver = peer(to);
  if (to == rank_) return receiver.core.sendHere(transfer);
  receiver.core.send(transfer);
  reach(receiver);
  push(receiver);
}

void TcpTransport::recv(int from, Tag tag, void* data, std::size_t bytes, Transfer* transfer) {
  transfer->flight = {.carrier = this,
                      .to = static_cast<std::byte*>(data),
                      .bytes = bytes,
                      .tag = tag,
                      .peer = from,
                      .inFlight = true};
  if (closed_) {
    transfer->flight.inFlight = false;
    return transfer->done(transfer, TransferStatus::cancelled, 0);
  }
  Peer& sender = peer(from);
  if (from == rank_) return sender.core.recvHere(transfer);
  sender.core.recv(transfer);
  reach(sender);
  if (!sender.core.control().empty()) push(sender);
}

void TcpTransport::cancel(Transfer* transfer) {
  if (!transfer->flight.inFlight || transfer->flight.cancelled) return;
  Peer& with = peer(transfer->flight.peer);
  if (transfer->flight.isSend)
    for (const auto& connection : with.connections)
      if (connection) connection->keepCopy(transfer);
  with.core.cancel(transfer);
  push(with);
}

bool TcpTransport::unexpected(Tag value, Tag mask, Tag* found) {
  // A look at one peer costs the same however many there are.
  if (constexpr Tag kSource = tagBits(kSourceBits); (mask & kSource) == kSource) {
    const int source = sourceOf(value);
    return source < ranks_ && !peers_.empty() && peer(source).core.unexpected(value, mask, found);
  }
  return std::ranges::any_of(
      peers_, [&](const auto& peer) { return peer->core.unexpected(value, mask, found); });
}

void TcpTransport::push(Peer& peer) {
  for (const auto& connection : peer.connections)
    if (connection) connection->write();
  list(peer);
}

void TcpTransport::list(Peer& peer) {
  for (const auto& connection : peer.connections)
    if (connection) list(*connection);
}

void TcpTransport::list(TcpConnection& connection) {
  if (!connection.isReady() || std::exchange(connection.listed, true)) return;
  ready_.push_back(&connection);  // there is room for all
}

// ------------------------------------------------------------------------------------- progress

bool TcpTransport::progress() {
  if (closed_ || peers_.empty()) return false;
  collect(0);
  bool anything = advanceAll();
  if (knocked_ || isPast(serveAt_) || isPast(acceptor_->nextDeadline())) serve();
  if (!pausing_.empty()) redial();
  if (!ended_.empty()) {
    settle();
    anything = true;
  }
  return anything;
}

// Takes the kernel's news, at once or within so many milliseconds.
void TcpTransport::collect(int milliseconds) {
  epoll_event events[kEventsAtOnce];
  const int count = epoll_wait(epoll_.get(), events, kEventsAtOnce, milliseconds);
  for (int i = 0; i < count; ++i) {
    void* const what = events[i].data.ptr;
    if (what == &woken_) {
      std::uint64_t wakes;
      // It can only fail when there was none.
      if (read(woken_.get(), &wakes, sizeof wakes) < 0) continue;
    } else if (what == &acceptor_) {
      knocked_ = true;
    } else {
      auto& connection = *static_cast<TcpConnection*>(what);
      connection.onEvents(
          events[i].events, options_.secret,
          {static_cast<std::uint32_t>(rank_), static_cast<std::uint32_t>(ConnectionPurpose::data),
           static_cast<std::uint32_t>(connection.index())});
      list(connection);
    }
  }
}

bool TcpTransport::advanceAll() {
  bool anything = false;
  // More may be listed meanwhile.
  for (std::size_t i = 0; i < ready_.size(); ++i) {
    TcpConnection& connection = *ready_[i];
    Peer& with = peer(connection.peer().rank());
    const bool moved = connection.advance();
    anything |= moved;
    if (moved)
      for (const auto& each : with.connections)
        if (each && each->isEarly()) each->retryEarly();
    list(with);
  }
  std::erase_if(ready_, [this](TcpConnection* connection) {
    connection->listed = connection->isReady();
    const bool ended = connection->stage() == TcpConnection::Stage::ended;
    if (ended) ended_.push_back(connection);
    if (ended) connection->listed = false;
    return !connection->listed;
  });
  return anything;
}

void TcpTransport::settle() {
  for (TcpConnection* connection : std::exchange(ended_, {})) {
    // The end of another connection may have been that of the peer.
    Peer* owner = nullptr;
    for (const auto& each : peers_)
      for (const auto& known : each->connections)
        if (known.get() == connection) owner = each.get();
    if (owner == nullptr) continue;
    if (!connection->isFinal()) {
      epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection->socket().get(), nullptr);
      connection->pause();
      pausing_.push_back(connection);
      continue;
    }
    readLast(*owner);
    lose(*owner, owner->left.empty() ? connection->why() : owner->left,
         connection->isOwnFault() ? TransferStatus::failed : TransferStatus::unreachable);
  }
}

// Reads what has arrived of a peer before its end.
void TcpTransport::readLast(Peer& peer) {
  for (const auto& connection : peer.connections)
    for (int i = 0; connection && i < kLastRounds && connection->advance(); ++i) {
    }
}

// Forgets a connection before it is destroyed.
void TcpTransport::forget(TcpConnection& connection) {
  // By hand: a forked child may hold a copy of the socket, and closing ours would leave it watched.
  if (connection.socket())
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.socket().get(), nullptr);
  for (auto* list : {&ready_, &ended_, &pausing_}) std::erase(*list, &connection);
  --connections_;
}

void TcpTransport::lose(Peer& peer, const std::string& why, TransferStatus status) {
  const std::string reason = why;  // of a connection that ends here
  for (const auto& connection : peer.connections)
    if (connection) forget(*connection);
  peer.connections.clear();
  peer.core.lose(reason, status);
}

void TcpTransport::lose(int rank, const std::string& why) {
  if (closed_ || peers_.empty() || rank == rank_) return;
  collect(0);
  readLast(peer(rank));
  lose(peer(rank), why);
}

void TcpTransport::leave(int rank, const std::string& why) {
  if (closed_ || peers_.empty() || rank == rank_) return;
  Peer& leaving = peer(rank);
  leaving.left = why;
  // The kernel of its host closes an open connection once all has been sent.
  const bool ends = std::ranges::any_of(leaving.connections, [](const auto& connection) {
    return connection && connection->stage() == TcpConnection::Stage::open;
  });
  if (!ends) lose(rank, why);
}

// ------------------------------------------------------------------------------------- waiting

TimePoint TcpTransport::nextDeadline() const {
  TimePoint next = std::min(serveAt_, acceptor_ ? acceptor_->nextDeadline() : kNever);
  for (const TcpConnection* connection : pausing_) next = std::min(next, connection->next());
  return next;
}

bool TcpTransport::prepareToSleep(int* milliseconds) {
  if (closed_ || knocked_ || !ready_.empty() || !ended_.empty()) return false;
  if (const TimePoint next = nextDeadline(); next != kNever)
    *milliseconds = std::min(*milliseconds, msUntil(next));
  return true;
}

void TcpTransport::wait(int milliseconds) {
  if (prepareToSleep(&milliseconds)) collect(milliseconds);
}

void TcpTransport::wake() {
  const std::uint64_t one = 1;
  // It can only fail when it is full, and then it wakes too.
  if (write(woken_.get(), &one, sizeof one) < 0) return;
}

std::unique_ptr<PollableTransport> makeTcpTransport(int rank, int ranks,
                                                    const TcpOptions& options) {
  return std::make_unique<TcpTransport>(rank, ranks, options);
}

}  // namespace moeccl
