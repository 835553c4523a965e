// A rank's way to the service of an id: tries the id's addresses until one of them answers and
// proves that it holds the id.
#pragma once

#include <cstdint>
#include <span>

#include "src/comm/clock.h"
#include "src/comm/rendezvous_wire.h"
#include "src/comm/socket.h"

namespace moeccl {

struct DialledService {
  Socket socket;
  Nonce ours, theirs;
};

// Throws Error: moecclSystemError when no address can lead to the service any more, moecclTimeout
// at the deadline; both list the addresses and what each did. `timeoutMs`: the deadline, for
// people.
DialledService dialService(const RendezvousId& id, TimePoint deadline, std::int64_t timeoutMs);

}  // namespace moeccl
