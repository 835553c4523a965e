// Ports of a rank: lets in ranks of its job (handshake.h) and nobody else. Nothing blocks, and
// nothing is done but while its owner calls serve().
//
// A stranger (port scanner, silent or half-open connection, garbage) costs one socket for at most
// handshakeMs, and at most maxStrangers at a time do. If more come, the oldest makes room; those
// that have not begun a handshake go first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "src/bootstrap/clock.h"
#include "src/bootstrap/handshake.h"
#include "src/bootstrap/socket.h"

namespace moeccl {

struct AcceptorLimits {
  std::int64_t handshakeMs = 10'000;
  std::size_t maxStrangers = 256;
};

class Acceptor {
 public:
  // Throws Error (moecclSystemError).
  explicit Acceptor(const Secret& secret, const AcceptorLimits& limits = {});

  // Listens on a free port of that address, and returns the port. May be called for several
  // addresses. Throws Error (moecclSystemError).
  std::uint16_t listen(const IpAddress& address);
  // Takes a socket that listens already, of whichever family. Throws Error (moecclSystemError).
  void listen(Socket listener);
  // Readable while serve() has something to do, but for deadlines.
  int fd() const { return epoll_.get(); }
  // Serves whoever has come. Returns after a while, also while more come.
  void serve();
  // When serve() should be called next, whatever fd() says.
  TimePoint nextDeadline() const;

  struct Guest {
    Socket socket;
    Hello hello;
  };
  // Descriptors of the ports.
  std::vector<int> listeners() const;
  // The next that has proved itself, or false.
  bool next(Guest* guest);

 private:
  using Id = std::uint64_t;  // of listeners and strangers; ascends, never used again

  struct Stranger {
    Socket socket;
    Handshake handshake;
    TimePoint deadline;
    bool wantsWrite = false;
  };
  using Strangers = std::map<Id, Stranger>;

  void accept(const Socket& listener);
  void onEvent(Strangers::iterator stranger);
  bool watch(int operation, Id id, int fd, std::uint32_t events);
  void drop(Strangers::iterator stranger);
  void dropOldest();
  void pause();
  void resume();

  Secret secret_;
  AcceptorLimits limits_;
  FileDescriptor epoll_;
  Id nextId_ = 0;
  std::map<Id, Socket> listeners_;
  Strangers strangers_;             // in the order in which they came
  TimePoint acceptAgain_ = kNever;  // when accepting pauses for want of descriptors
  std::deque<Guest> guests_;
};

// One step of a handshake on a non-blocking socket. Returns false when the connection has ended.
bool advance(Handshake& handshake, const Socket& socket);

}  // namespace moeccl
