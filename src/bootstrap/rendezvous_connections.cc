// The sockets of a rendezvous: accepting, reading, writing, closing. What the bytes mean is in
// rendezvous_service.cc.
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "src/base/log.h"
#include "src/bootstrap/rendezvous_service.h"

namespace moeccl {
namespace {

// Few, so that in a crowd those accepted before are read in between.
constexpr int kAcceptsAtOnce = 8;
// Bytes that are read of one rank's data at a time, so that no rank keeps the others waiting.
constexpr std::size_t kReadAtOnce = 256 << 10;

}  // namespace

void RendezvousService::acceptAll() {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    const int fd = accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      if (!isOwnError(errno)) return;
      if (errno == EMFILE && raiseDescriptorLimit()) continue;
      if (!strangers_.empty()) {
        dropOldestStranger();
        sweep();
        continue;
      }
      log(LogLevel::warn, {}, "the rendezvous cannot accept a connection: %s",
          std::strerror(errno));
      pauseAccepting();
      return;
    }
    const Id id = nextId_++;
    Connection& connection = connections_[id];
    connection.socket = Socket(fd);
    connection.deadline = afterMs(limits_.handshakeMs);
    tuneConnection(connection.socket);
    breakWhenSilent(connection.socket, kSilenceMs);
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = id;
    if (strangers_.size() >= limits_.maxStrangers) dropOldestStranger();
    strangers_.insert({false, id});
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) drop(id);
  }
}

void RendezvousService::pauseAccepting() {
  epoll_event event{};
  event.data.u64 = kListener;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), &event);
  acceptAgain_ = afterMs(250);
}

void RendezvousService::resumeAccepting() {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kListener;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), &event);
  acceptAgain_ = kNever;
}

void RendezvousService::onEvent(Id id, std::uint32_t events) {
  const auto found = connections_.find(id);
  if (found == connections_.end() || found->second.over) return;
  Connection& connection = found->second;
  if ((events & EPOLLOUT) != 0) flush(id, connection);
  if ((events & ~std::uint32_t{EPOLLOUT}) != 0 && !connection.over && !receive(id, connection))
    drop(id);
}

// One step of reading; false when the connection is over.
bool RendezvousService::receive(Id id, Connection& connection) {
  if (connection.stage == Connection::Stage::greeting) {
    if (!receiveFixed(connection, sizeof(Greeting))) return false;
    if (connection.have == sizeof(Greeting)) onGreeting(id, connection);
    return true;
  }
  if (connection.stage == Connection::Stage::joining) {
    if (!receiveFixed(connection, sizeof(Join))) return false;
    if (connection.have == sizeof(Join)) onJoin(id, connection);
    return true;
  }
  if (phase_ == Phase::failed || connection.rank < 0) {
    // What a rank was sending when the end came; it reads the reason once it has sent that.
    std::byte ignored[4096];
    const ssize_t got = recv(connection.socket.get(), ignored, sizeof ignored, 0);
    return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
  }
  if (!connection.inPayload) {
    if (!receiveFixed(connection, sizeof(MessageHeader))) return false;
    if (connection.have == sizeof(MessageHeader)) onHeader(connection);
    return true;
  }
  std::byte* place = round_.all->data() + sizeof(MessageHeader) + round_.bytes * connection.rank;
  const std::size_t left = round_.bytes - connection.have;
  const ssize_t got =
      recv(connection.socket.get(), place + connection.have, std::min(left, kReadAtOnce), 0);
  if (got == 0) return false;
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  connection.have += static_cast<std::size_t>(got);
  if (connection.have == round_.bytes) {
    connection.inPayload = false;
    connection.have = 0;
    onPart(connection.rank);
  }
  return true;
}

bool RendezvousService::receiveFixed(Connection& connection, std::size_t size) {
  const ssize_t got = recv(connection.socket.get(), connection.in.data() + connection.have,
                           size - connection.have, 0);
  if (got == 0) return false;
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  connection.have += static_cast<std::size_t>(got);
  return true;
}

void RendezvousService::send(Id id, Connection& connection, std::shared_ptr<const Bytes> bytes) {
  connection.out.push_back({std::move(bytes)});
  if (connection.out.size() == 1) flush(id, connection);
}

void RendezvousService::flush(Id id, Connection& connection) {
  while (!connection.out.empty()) {
    Outgoing& next = connection.out.front();
    const ssize_t sent = ::send(connection.socket.get(), next.bytes->data() + next.sent,
                                next.bytes->size() - next.sent, MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) drop(id);
      break;
    }
    next.sent += static_cast<std::size_t>(sent);
    if (next.sent == next.bytes->size()) connection.out.pop_front();
  }
  if (!connection.over && connection.wantsWrite == connection.out.empty()) watch(id, connection);
}

void RendezvousService::watch(Id id, Connection& connection) {
  connection.wantsWrite = !connection.out.empty();
  epoll_event event{};
  event.events = EPOLLIN | (connection.wantsWrite ? std::uint32_t{EPOLLOUT} : 0u);
  event.data.u64 = id;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connection.socket.get(), &event) != 0) drop(id);
}

void RendezvousService::dropOldestStranger() {
  if (!strangers_.empty()) drop(strangers_.begin()->second);
}

// Closing waits for sweep(): callers may be walking over the connections.
void RendezvousService::drop(Id id) {
  Connection& connection = connections_.at(id);
  if (connection.over) return;
  connection.over = true;
  strangers_.erase({connection.stage == Connection::Stage::joining, id});
  if (connection.stage != Connection::Stage::member) {
    ++refused_;
    if (logs(LogLevel::trace))
      log(LogLevel::trace, {}, "the rendezvous refuses %s", peerText(connection.socket).c_str());
  }
  sweeping_.push_back(id);
}

void RendezvousService::sweep() {
  // A departure may fail the rendezvous, and that drop others.
  while (!sweeping_.empty()) {
    const Id id = sweeping_.back();
    sweeping_.pop_back();
    const auto found = connections_.find(id);
    const int rank = found->second.rank;
    // By hand: a forked child may hold a copy of the socket, and closing ours would leave it
    // watched.
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second.socket.get(), nullptr);
    connections_.erase(found);
    if (rank >= 0 && member_[rank] == id) {
      member_[rank] = 0;
      left_[rank] = true;
      --present_;
      onDeparture(rank);
    }
  }
}

}  // namespace moeccl
