// Ranks as processes over UCX.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "src/exec/pollable.h"

namespace moeccl {

// What UCX may use. UCX_TLS may say more narrowly, but only `everything` has its TCP.
enum class UcxReach {
  everything,    // TCP too, where anybody may connect
  sharedMemory,  // in a node
  noTcp,         // shared memory and networks with RDMA
};

struct UcxOptions {
  UcxReach reach = UcxReach::everything;
  // By rank: the source field of its tags, where that is not its rank.
  std::vector<int> sources = {};
  // For messages that nobody has asked for, at most.
  std::size_t memory = std::size_t{64} << 20;
};

// Throw std::runtime_error when built without UCX, and where this process may open too few files.
std::unique_ptr<PollableTransport> makeUcxTransport(int rank, int ranks,
                                                    const UcxOptions& options = {});
// Whether UCX finds a network with RDMA here.
bool ucxFindsRdma();
// Why so many ranks of a node cannot share memory; empty: they can.
std::string missingSharedMemory(int ranks);
// Whether this library was built with UCX.
bool hasUcx();

}  // namespace moeccl
