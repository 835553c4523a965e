// A rank's way to the service of an id: tries the id's addresses until one of them answers and
// proves that it holds the id, then joins there.
#pragma once

#include <string>

#include "src/bootstrap/rendezvous_wire.h"
#include "src/bootstrap/socket.h"

namespace moeccl {

struct Service {
  Socket socket;
  std::string process;  // "host:pid"
};

// A connection on which the service has accepted `arrival`. Throws Error: moecclSystemError when no
// address can lead to the service any more, moecclTimeout at the deadline (arrival.timeoutMs from
// now); both list the addresses and what became of each. `early`: the service may not be there yet,
// so that only the deadline ends the wait.
Service dialService(const RendezvousId& id, const Arrival& arrival, bool early = false);

}  // namespace moeccl
