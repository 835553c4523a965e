// What moeccl-perf can measure. A new collective that moves data is one entry of the table in
// collectives.cc, and one in mpi_competitor.cc to be compared.
#pragma once

#include <moeccl/moeccl.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace moeccl::perf {

// The ranks of a call.
struct World {
  int ranks = 1;
  moecclGridShape_t grid = {1, 1, 1, moecclOrderEspEp};  // of collectives of a grid
  int experts = 1;                                       // per rank

  // Which experts a rank holds, and which shard of them.
  int positionOf(int rank) const;
  int shardOf(int rank) const;
};

// "2x4x2" or "2x4x2:ep", as --grid takes it.
std::string textOf(const moecclGridShape_t& shape);

// Which data a block holds: what `source` has for `destination`, whatever these number in a
// collective; two that everybody may take for one another have the same numbers. Where blocks are
// summed a rank has one of `terms` terms: its elements at the places that are its own, and zeros.
struct BlockData {
  int source;
  int destination;
  int term = 0;
  int terms = 1;
};

struct CollectiveCall {
  const void* send;
  void* recv;
  std::size_t count;
  moecclDataType_t type;
  moecclComm_t comm;
  moecclGrid_t grid;  // NULL where none is used
  moecclStream_t stream;
  const World& world;
};

struct MeasuredCollective {
  std::string_view name;  // as in the config's `algorithms`
  std::string_view description;
  bool usesGrid = false;
  // Numbers of blocks of `count` elements in the buffers.
  int (*sendBlocks)(const World& world);
  int (*recvBlocks)(const World& world);
  BlockData (*sent)(const World& world, int rank, int block);
  // The data of a received block; where blocks are summed, the whole sum.
  BlockData (*received)(const World& world, int rank, int block);
  bool sums = false;
  // Only rank 0 receives: it is the root.
  bool toRoot = false;
  // In place, the smaller buffer begins at this block of the larger one; nullptr: not in place.
  int (*inPlaceBlock)(int rank) = nullptr;
  // nccl-tests' formula: bus bandwidth over algorithm bandwidth; where nccl-tests has none, what
  // leaves a rank over what is in its larger buffer.
  double (*busFactor)(const World& world);
  moecclResult_t (*call)(const CollectiveCall& call);
};

std::span<const MeasuredCollective> collectives();

}  // namespace moeccl::perf
