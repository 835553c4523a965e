// A control connection that this rank dials, until the peer has welcomed it: only then is it the
// pair's, for a peer may close what it has accepted (acceptor.h). Does not block.
#pragma once

#include <poll.h>
#include <sys/un.h>

#include <cstdint>
#include <string>

#include "src/bootstrap/clock.h"
#include "src/bootstrap/handshake.h"
#include "src/bootstrap/socket.h"

namespace moeccl {

// What an acceptor says first on a connection that it takes.
inline constexpr char kControlWelcome = 'w';

// The address of a Unix socket: a file, or a name in the network's namespace, which begins with
// '@'.
sockaddr_un unixAddress(const std::string& path);

// Where a rank listens: at a port, or for ranks of its node on a Unix socket.
struct ControlAddress {
  IpEndpoint endpoint;  // port 0: none
  std::string path;     // empty: none
};

class ControlDial {
 public:
  struct Limits {
    std::int64_t connectMs;  // negative: none, as below
    std::int64_t silenceMs;  // of the peer's host, once there is a connection
  };

  // `index`: tells connections of a pair apart, later ones have greater ones.
  ControlDial(const Secret& secret, int rank, std::uint32_t index, const ControlAddress& to,
              const Limits& limits);

  enum class State {
    connecting,
    greeting,  // there is a connection, which the peer has not welcomed
    welcome,   // take()
    closed,    // the peer, or what lies between, has closed the connection: to be tried again
    failed,    // error()
  };
  State state() const { return state_; }
  pollfd wanted() const;
  // `ready`: the socket is, as wanted() says.
  State advance(bool ready);
  // ETIMEDOUT also where `connectMs` have passed, EPROTO where something else listens there.
  int error() const { return error_; }
  const Socket& socket() const { return socket_; }
  Socket take() { return std::move(socket_); }

 private:
  State fail(int error);

  Handshake handshake_;
  Limits limits_;
  Socket socket_;
  bool local_;
  TimePoint until_ = kNever;
  State state_ = State::connecting;
  int error_ = 0;
};

}  // namespace moeccl
