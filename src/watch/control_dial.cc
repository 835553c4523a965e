// Dials over TCP or a Unix socket, goes through the handshake, and waits for the peer's welcome.
#include "src/watch/control_dial.h"

#include <cerrno>
#include <cstring>

#include "src/bootstrap/acceptor.h"

namespace moeccl {
namespace {

// 0 or the error.
int connectLocally(const std::string& path, Socket* socket) {
  *socket = Socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!*socket) return errno;
  const sockaddr_un address = unixAddress(path);
  const auto* raw = reinterpret_cast<const sockaddr*>(&address);
  return ::connect(socket->get(), raw, sizeof address) == 0 ? 0 : errno;
}

}  // namespace

sockaddr_un unixAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  if (path.starts_with('@')) address.sun_path[0] = '\0';
  return address;
}

ControlDial::ControlDial(const Secret& secret, int rank, std::uint32_t index,
                         const ControlAddress& to, const Limits& limits)
    : handshake_(Handshake::dialer(
          secret, {static_cast<std::uint32_t>(rank),
                   static_cast<std::uint32_t>(ConnectionPurpose::control), index})),
      limits_(limits),
      local_(!to.path.empty()) {
  const int error = local_ ? connectLocally(to.path, &socket_)
                           : startConnect(to.endpoint.address, to.endpoint.port, &socket_);
  if (error == EAGAIN)
    state_ = State::closed;  // many dial it at the same time
  else if (error != 0)
    fail(error);
  else if (local_)
    state_ = State::greeting;
  else
    until_ = afterMs(limits.connectMs);
}

pollfd ControlDial::wanted() const {
  const bool writes = state_ == State::connecting || !handshake_.toSend().empty();
  return {socket_.get(), static_cast<short>(writes ? POLLOUT : POLLIN), 0};
}

ControlDial::State ControlDial::fail(int error) {
  error_ = error;
  return state_ = State::failed;
}

ControlDial::State ControlDial::advance(bool ready) {
  if (state_ == State::connecting) {
    if (!ready) return isPast(until_) ? fail(ETIMEDOUT) : state_;
    if (const int error = connectResult(socket_))
      return error == ECONNRESET ? state_ = State::closed : fail(error);
    tuneConnection(socket_);
    breakWhenSilent(socket_, limits_.silenceMs);
    state_ = State::greeting;
  }
  if (state_ != State::greeting) return state_;
  errno = 0;  // stays where the peer has closed
  if (!moeccl::advance(handshake_, socket_)) {
    if (handshake_.state() == Handshake::State::refused) return fail(EPROTO);
    return meansHostIsGone(errno) ? fail(errno) : state_ = State::closed;
  }
  if (handshake_.state() != Handshake::State::done) return state_;
  char welcome;
  const ssize_t got = recv(socket_.get(), &welcome, sizeof welcome, 0);
  if (got > 0) return state_ = State::welcome;
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return state_;
  return got < 0 && meansHostIsGone(errno) ? fail(errno) : state_ = State::closed;
}

}  // namespace moeccl
