// Names the collectives, and says for each how many blocks a rank puts in and gets out, and which
// payloads every output block must hold.
#include "algorithms/collective.h"

#include <array>
#include <limits>

namespace moeccl {
namespace {

constexpr std::array<std::string_view, kCollectives> kNames = {
    "alltoall",  "alltoallv", "allgather",        "allgatherv",   "reducescatter", "reducescatterv",
    "allreduce", "broadcast", "reduce",           "gather",       "scatter",       "tpalltoall",
    "dispatch",  "combine",   "combineallgather", "splitdispatch"};

}  // namespace

std::string_view nameOf(Collective collective) { return kNames[static_cast<size_t>(collective)]; }

std::optional<Collective> collectiveNamed(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i)
    if (kNames[i] == name) return static_cast<Collective>(i);
  return std::nullopt;
}

bool needsGrid(Collective collective) { return collective >= Collective::tpAllToAll; }

int mpThatMatters(Collective collective) {
  if (collective == Collective::dispatch || collective == Collective::combine) return 1;
  return collective == Collective::splitDispatch ? 2 : std::numeric_limits<int>::max();
}

bool hasRoot(Collective collective) {
  return collective >= Collective::broadcast && collective <= Collective::scatter;
}

int Contract::inputBlocks(int rank) const {
  switch (collective) {
    case Collective::allToAll:
    case Collective::allToAllv:
    case Collective::reduceScatter:
    case Collective::reduceScatterv:
      return ranks;
    case Collective::allGather:
    case Collective::allGatherv:
    case Collective::allReduce:
    case Collective::reduce:
    case Collective::gather:
      return 1;
    case Collective::broadcast:
      return rank == root ? 1 : 0;
    case Collective::scatter:
      return rank == root ? ranks : 0;
    case Collective::tpAllToAll:
      return grid.mpGroups();
    case Collective::dispatch:
      return grid.ep * experts;
    case Collective::combine:
    case Collective::combineAllGather:
      return experts * ranks;
    case Collective::splitDispatch:
      return grid.ep * experts * grid.mp;
  }
  return 0;
}

int Contract::outputBlocks(int rank) const {
  switch (collective) {
    case Collective::allToAll:
    case Collective::allToAllv:
    case Collective::allGather:
    case Collective::allGatherv:
      return ranks;
    case Collective::reduceScatter:
    case Collective::reduceScatterv:
    case Collective::allReduce:
    case Collective::broadcast:
    case Collective::scatter:
      return 1;
    case Collective::reduce:
      return rank == root ? 1 : 0;
    case Collective::gather:
      return rank == root ? ranks : 0;
    case Collective::tpAllToAll:
      return grid.mpGroups();
    case Collective::dispatch:
    case Collective::splitDispatch:
      return experts * ranks;
    case Collective::combine:
      return grid.ep * experts;
    case Collective::combineAllGather:
      return grid.ep * experts * grid.mp;
  }
  return 0;
}

std::vector<Payload> Contract::expected(int rank, int outputBlock) const {
  std::vector<Payload> sum;
  // What the shards of an expert have for a rank.
  const auto addShards = [&](int expert, int owner) {
    for (int shard = 0; shard < grid.esp; ++shard)
      sum.push_back({grid.rankOf(expert / experts, shard), expert % experts * ranks + owner});
  };
  const int mine = grid.positionOf(rank) * experts;  // my first expert
  switch (collective) {
    case Collective::allToAll:
    case Collective::allToAllv:
      return {{outputBlock, rank}};
    case Collective::allGather:
    case Collective::allGatherv:
    case Collective::gather:
      return {{outputBlock, 0}};
    case Collective::broadcast:
      return {{root, 0}};
    case Collective::scatter:
      return {{root, rank}};
    case Collective::reduceScatter:
    case Collective::reduceScatterv:
      for (int source = 0; source < ranks; ++source) sum.push_back({source, rank});
      return sum;
    case Collective::allReduce:
    case Collective::reduce:
      for (int source = 0; source < ranks; ++source) sum.push_back({source, 0});
      return sum;
    case Collective::tpAllToAll:
      return {{grid.mpRank(outputBlock, 0), grid.mpGroupOf(rank)}};
    case Collective::dispatch:
      return {{outputBlock % ranks, mine + outputBlock / ranks}};
    case Collective::splitDispatch: {
      const int source = outputBlock % ranks, expert = mine + outputBlock / ranks;
      return {identity({source, expert * grid.mp + grid.mpIndexOf(source)})};
    }
    case Collective::combine:
      addShards(outputBlock, rank);
      return sum;
    case Collective::combineAllGather:
      addShards(outputBlock / grid.mp, grid.mpRank(grid.mpGroupOf(rank), outputBlock % grid.mp));
      return sum;
  }
  return sum;
}

Payload Contract::identity(Payload payload) const {
  if (collective != Collective::tpAllToAll && collective != Collective::splitDispatch)
    return payload;
  return {grid.mpRank(grid.mpGroupOf(payload.rank), 0), payload.block};
}

bool Contract::ordered() const {
  return collective == Collective::combine || collective == Collective::combineAllGather;
}

bool Contract::reducesInPlace() const {
  return collective == Collective::reduceScatter || collective == Collective::reduceScatterv ||
         collective == Collective::allReduce || collective == Collective::reduce;
}

}  // namespace moeccl
