// What carries the messages of a job on host memory, by where its ranks run.
//
//   auto    ranks are threads of one process            the loopback
//           all can share memory                        UCX, which opens no port
//           all find a network with RDMA                UCX, without TCP
//           else                                        UCX in nodes, TCP sockets of our own
//                                                       between them
//           built without UCX, several processes        TCP sockets alone
//           a node has no room for shared memory        TCP sockets instead of it
//   tcp     TCP sockets alone; on the loopback interface where all ranks share a network
//   ucx     UCX with whatever it finds, its own TCP too, where anybody may connect
#pragma once

#include <memory>
#include <span>

#include "src/bootstrap/host.h"
#include "src/bootstrap/oob.h"
#include "src/bootstrap/rendezvous_id.h"
#include "src/comm/settings.h"
#include "src/exec/transport.h"

namespace moeccl {

// Collective; the transport is connected. `secret` is the job's. Throws Error on all ranks.
std::unique_ptr<Transport> connectTransport(Oob& oob, const Settings& settings,
                                            std::span<const HostIdentity> hosts,
                                            const Secret& secret);

}  // namespace moeccl
