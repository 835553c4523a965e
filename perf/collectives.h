// What moeccl-perf can measure. A new collective that moves data is one entry of the table in
// collectives.cc, and one in mpi_contender.cc to be compared.
#pragma once

#include <moeccl/moeccl.h>

#include <cstddef>
#include <span>
#include <string_view>

namespace moeccl::perf {

// Which data a block holds: what `source` has for `destination`. Collectives in which everybody gets
// the same have destination 0.
struct Payload {
  int source;
  int destination;
};

struct Collective {
  std::string_view name;  // as in the config's `algorithms`
  std::string_view description;
  // Numbers of blocks of `count` elements in the buffers.
  int (*sendBlocks)(int ranks);
  int (*recvBlocks)(int ranks);
  Payload (*sent)(int rank, int block);
  Payload (*received)(int rank, int block);
  // In place, the send buffer begins at this block of the receive buffer; nullptr: not in place.
  int (*inPlaceBlock)(int rank);
  // nccl-tests' formula: bus bandwidth over algorithm bandwidth.
  double (*busFactor)(int ranks);
  moecclResult_t (*call)(const void* send, void* recv, std::size_t count, moecclDataType_t type,
                         moecclComm_t comm, moecclStream_t stream);
};

std::span<const Collective> collectives();

}  // namespace moeccl::perf
