// Ranks as processes over UCX.
#pragma once

#include <memory>
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
};

// Throw std::runtime_error when built without UCX.
std::unique_ptr<PollableTransport> makeUcxTransport(int rank, int ranks,
                                                    const UcxOptions& options = {});
// Whether UCX finds a network with RDMA here.
bool ucxFindsRdma();
// Whether this library was built with UCX.
bool hasUcx();

}  // namespace moeccl
