// A launcher-free start: ranks that hold the same id find each other over TCP.
//
// The process that makes an id listens on a port of its own and runs a service thread there; the id
// carries its addresses and a secret. Every rank connects, the service waits for all of them, then
// carries their all-gathers until they have left, and ends. All set-up traffic passes that one
// process (a star): P * P * bytes per all-gather.
//
// Trust. Only who holds the id gets in, and both ends prove that they hold it (HMAC-SHA256 over
// nonces of both), so the secret itself never travels: a rank tries addresses that may be another
// machine's in its own network (each host's own 172.17.0.1, say), where anybody may listen. What
// members say after that is neither encrypted nor signed, as with NCCL: who can alter the
// cluster's traffic is trusted. Who can only read it learns no secret: ranks make theirs from
// the id's.
//
// Strangers (port scanners, silent or half-open connections, garbage) cost the service one socket
// and about a kilobyte each, for at most handshakeMs, and at most maxStrangers at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "moeccl/moeccl.h"
#include "src/bootstrap/oob.h"
#include "src/bootstrap/rendezvous_id.h"

namespace moeccl {

struct RendezvousLimits {
  std::int64_t idleMs = std::int64_t{24} * 3600 * 1000;  // until the first rank arrives
  std::int64_t handshakeMs = 10'000;                     // for a connection to prove itself
  std::size_t maxStrangers = 512;  // connections that have not; the oldest makes room
};

// Opens a rendezvous in this process. It listens on all interfaces, or only on the one that
// `interfaces` (MOECCL_SOCKET_IFNAME) takes. Throws Error (moecclSystemError, or
// moecclInvalidArgument where it takes none).
moecclUniqueId makeUniqueId(std::string_view interfaces = {}, const RendezvousLimits& limits = {});
// The same at a port that is given, for ranks that make its id themselves: whoever has the secret
// gets in.
moecclUniqueId makeUniqueId(std::uint16_t port, const Secret& secret,
                            std::string_view interfaces = {}, const RendezvousLimits& limits = {});

// Returns when all `ranks` have joined. Dropping the result without finish() is an error to the
// others, which hear of it in their next call of check() too. `timeoutMs` (negative: for ever)
// bounds the wait for all to arrive, and then each all-gather. Throws Error, on every rank that has
// arrived:
//   moecclInvalidArgument  not an id, or a rank outside [0, ranks)
//   moecclInvalidUsage     ranks disagree on `ranks`, two came as one rank, the id was used before
//   moecclTimeout          names the ranks that are missing
//   moecclRemoteError      a rank left, or the service's process ended
//   moecclSystemError      no rendezvous at the id's addresses
// `early`: this rank may come before the rendezvous is open, and waits for it.
std::unique_ptr<Oob> join(const moecclUniqueId& id, int ranks, int rank, std::int64_t timeoutMs,
                          bool early = false);

}  // namespace moeccl
