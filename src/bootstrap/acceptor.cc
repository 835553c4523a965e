// Accepts connections and goes on with their handshakes as an epoll tells. Where descriptors run
// out, the oldest stranger makes room, or accepting pauses.
#include "src/bootstrap/acceptor.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "src/base/error.h"
#include "src/base/file_limit.h"
#include "src/base/log.h"
#include "src/base/text.h"

namespace moeccl {
namespace {

// Few, so that in a crowd those accepted before are read in between.
constexpr int kAcceptsAtOnce = 8;
constexpr int kEventsAtOnce = 64;
// Rounds of one serve(), enough for some hundred connections.
constexpr int kRounds = 32;
constexpr std::int64_t kPauseMs = 250;

}  // namespace

bool advance(Handshake& handshake, const Socket& socket) {
  while (handshake.state() == Handshake::State::running) {
    if (const auto bytes = handshake.toSend(); !bytes.empty()) {
      const ssize_t sent = send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0) return errno == EAGAIN || errno == EINTR;
      handshake.sent(static_cast<std::size_t>(sent));
      continue;
    }
    std::array<std::byte, 128> in;
    const ssize_t got = recv(socket.get(), in.data(), std::min(in.size(), handshake.wanted()), 0);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    handshake.received(std::span(in).first(static_cast<std::size_t>(got)));
  }
  return handshake.state() == Handshake::State::done;
}

Acceptor::Acceptor(const Secret& secret, const AcceptorLimits& limits)
    : secret_(secret), limits_(limits), epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_)
    throw Error(moecclSystemError, "cannot poll connections: " + descriptorErrorText(errno));
}

std::uint16_t Acceptor::listen(const IpAddress& address) {
  std::uint16_t port = 0;
  listen(listenOn(address, &port));
  return port;
}

void Acceptor::listen(Socket listener) {
  if (!watch(EPOLL_CTL_ADD, nextId_, listener.get(), EPOLLIN))
    throw Error(moecclSystemError, stringf("cannot poll a port: %s", std::strerror(errno)));
  listeners_.emplace(nextId_++, std::move(listener));
}

void Acceptor::serve() {
  if (isPast(acceptAgain_)) resume();
  while (!strangers_.empty() && isPast(strangers_.begin()->second.deadline))
    drop(strangers_.begin());
  for (int round = 0; round < kRounds; ++round) {
    epoll_event events[kEventsAtOnce];
    const int count = epoll_wait(epoll_.get(), events, kEventsAtOnce, 0);
    if (count <= 0) return;
    for (int i = 0; i < count; ++i) {
      const Id id = events[i].data.u64;  // a copy: the kernel's structs are packed
      if (const auto listener = listeners_.find(id); listener != listeners_.end())
        accept(listener->second);
      else if (const auto found = strangers_.find(id); found != strangers_.end())
        onEvent(found);
    }
  }
}

TimePoint Acceptor::nextDeadline() const {
  return strangers_.empty() ? acceptAgain_
                            : std::min(acceptAgain_, strangers_.begin()->second.deadline);
}

std::vector<int> Acceptor::listeners() const {
  std::vector<int> descriptors;
  for (const auto& [id, listener] : listeners_) descriptors.push_back(listener.get());
  return descriptors;
}

bool Acceptor::next(Guest* guest) {
  if (guests_.empty()) return false;
  *guest = std::move(guests_.front());
  guests_.pop_front();
  return true;
}

void Acceptor::accept(const Socket& listener) {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    Socket socket(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      if (!isOwnError(errno)) return;
      if (errno == EMFILE && raiseDescriptorLimit()) continue;
      if (strangers_.empty()) return pause();
      dropOldest();
      continue;
    }
    if (strangers_.size() >= limits_.maxStrangers) dropOldest();
    tuneConnection(socket);
    const Id id = nextId_++;
    if (!watch(EPOLL_CTL_ADD, id, socket.get(), EPOLLIN)) continue;
    Stranger stranger{std::move(socket), Handshake::acceptor(secret_),
                      afterMs(limits_.handshakeMs)};
    onEvent(strangers_.emplace(id, std::move(stranger)).first);
  }
}

void Acceptor::onEvent(Strangers::iterator at) {
  Stranger& stranger = at->second;
  if (!advance(stranger.handshake, stranger.socket)) return drop(at);
  if (stranger.handshake.state() == Handshake::State::done) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, stranger.socket.get(), nullptr);
    guests_.push_back({std::move(stranger.socket), stranger.handshake.peer()});
    strangers_.erase(at);
    return;
  }
  const bool wantsWrite = !stranger.handshake.toSend().empty();
  if (std::exchange(stranger.wantsWrite, wantsWrite) != wantsWrite &&
      !watch(EPOLL_CTL_MOD, at->first, stranger.socket.get(), wantsWrite ? EPOLLOUT : EPOLLIN))
    drop(at);
}

bool Acceptor::watch(int operation, Id id, int fd, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  return epoll_ctl(epoll_.get(), operation, fd, &event) == 0;
}

void Acceptor::drop(Strangers::iterator stranger) {
  if (logs(LogLevel::trace))
    log(LogLevel::trace, {}, "refuses a connection from %s",
        peerText(stranger->second.socket).c_str());
  // By hand: a forked child may hold a copy of the socket, and closing ours would leave it watched.
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, stranger->second.socket.get(), nullptr);
  strangers_.erase(stranger);
}

void Acceptor::dropOldest() {
  const auto silent = std::ranges::find_if(
      strangers_, [](const auto& each) { return !each.second.handshake.begun(); });
  drop(silent == strangers_.end() ? strangers_.begin() : silent);
}

void Acceptor::pause() {
  for (const auto& [id, listener] : listeners_) watch(EPOLL_CTL_MOD, id, listener.get(), 0);
  acceptAgain_ = afterMs(kPauseMs);
}

void Acceptor::resume() {
  for (const auto& [id, listener] : listeners_) watch(EPOLL_CTL_MOD, id, listener.get(), EPOLLIN);
  acceptAgain_ = kNever;
}

}  // namespace moeccl
