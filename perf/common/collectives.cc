// Lists the collectives that can be measured in one table: their blocks, the data that these hold,
// the bus factor and the call.
#include "perf/common/collectives.h"

#include <moeccl/route.h>

#include <array>
#include <vector>

namespace moeccl::perf {
namespace {

int perRank(const World& world) { return world.ranks; }
int single(const World&) { return 1; }
double othersShare(const World& world) {
  return static_cast<double>(world.ranks - 1) / world.ranks;
}
int ownBlock(int rank) { return rank; }
int onlyBlock(int) { return 0; }

BlockData toEach(const World&, int rank, int block) { return {rank, block}; }
BlockData fromRoot(const World&, int, int) { return {0, 0}; }
BlockData ofRoot(const World&, int, int block) { return {0, block}; }
BlockData ownSum(const World&, int rank, int) { return {0, rank}; }
BlockData ownAlone(const World&, int rank, int) { return {rank, 0}; }
BlockData aloneOfEach(const World&, int, int block) { return {block, 0}; }
BlockData term(const World& world, int rank, int block) { return {0, block, rank, world.ranks}; }
double whole(const World&) { return 1; }
BlockData fromEach(const World&, int rank, int block) { return {block, rank}; }

// Blocks of equal size, for functions that take any; valid until the next of the thread.
struct EqualParts {
  const std::size_t *counts, *displs;
  explicit EqualParts(const CollectiveCall& call) {
    static thread_local std::vector<std::size_t> countOf, displOf;
    const auto ranks = static_cast<std::size_t>(call.world.ranks);
    countOf.assign(ranks, call.count);
    displOf.resize(ranks);
    for (std::size_t i = 0; i < ranks; ++i) displOf[i] = i * call.count;
    counts = countOf.data();
    displs = displOf.data();
  }
};

// Blocks and data of grids' collectives. Experts are numbered over all positions; what rank r has
// for expert e is {r, e}.
int groups(const World& world) { return world.ranks / world.grid.nMp; }
int tokenBlocks(const World& world) { return world.grid.nEp * world.experts; }
int sharedTokenBlocks(const World& world) { return tokenBlocks(world) * world.grid.nMp; }
int expertBlocks(const World& world) { return world.experts * world.ranks; }
int expertOf(const World& world, int rank, int block) {
  return world.positionOf(rank) * world.experts + block / world.ranks;
}
int rankInGroup(const World& world, int rank, int index) {
  return rank / world.grid.nMp * world.grid.nMp + index;
}
BlockData atExpert(const World& world, int rank, int block) {
  return {block % world.ranks, expertOf(world, rank, block)};
}
BlockData partialSum(const World& world, int rank, int block) {
  BlockData payload = atExpert(world, rank, block);
  payload.term = world.shardOf(rank);
  payload.terms = world.grid.nEsp;
  return payload;
}
// The whole MP group's tokens: each rank's share of what all of it has.
BlockData sharedTokens(const World& world, int rank, int block) {
  return {rankInGroup(world, rank, block % world.grid.nMp), block / world.grid.nMp};
}
// Each block leaves for nEsp shards, one of them perhaps itself. `tokens`: in the buffer of tokens.
double shardsShareOf(const World& world, int tokens) {
  return othersShare(world) * world.grid.nEsp * tokenBlocks(world) /
         std::max(tokens, expertBlocks(world));
}
double shardsShare(const World& world) { return shardsShareOf(world, tokenBlocks(world)); }
double splitShardsShare(const World& world) {
  return shardsShareOf(world, sharedTokenBlocks(world));
}

// And each result for the rest of the MP group.
double shardsAndGroupsShare(const World& world) {
  const double larger = std::max(sharedTokenBlocks(world), expertBlocks(world));
  return (othersShare(world) * world.grid.nEsp + world.grid.nMp - 1) * tokenBlocks(world) / larger;
}

constexpr std::array kCollectives = {
    MeasuredCollective{
        .name = "alltoall",
        .description = "block j of rank i becomes block i of rank j",
        .sendBlocks = perRank,
        .recvBlocks = perRank,
        .sent = toEach,
        .received = fromEach,
        .busFactor = othersShare,
        .call =
            [](const CollectiveCall& c) {
              return moecclAllToAll(c.send, c.recv, c.count, c.type, c.comm, c.stream);
            },
    },
    MeasuredCollective{
        .name = "alltoallv",
        .description = "alltoall by the function for unequal blocks of bounded size",
        .sendBlocks = perRank,
        .recvBlocks = perRank,
        .sent = toEach,
        .received = fromEach,
        .busFactor = othersShare,
        .call =
            [](const CollectiveCall& c) {
              const EqualParts parts(c);
              return moecclAllToAllvBounded(
                  c.send, parts.counts, parts.displs, c.recv, parts.counts, parts.displs, c.count,
                  c.count * static_cast<std::size_t>(c.world.ranks), c.type, c.comm, c.stream);
            },
    },
    MeasuredCollective{
        .name = "allgather",
        .description = "the block of rank i becomes block i of every rank",
        .sendBlocks = single,
        .recvBlocks = perRank,
        .sent = ownAlone,
        .received = aloneOfEach,
        .inPlaceBlock = ownBlock,
        .busFactor = othersShare,
        .call =
            [](const CollectiveCall& c) {
              return moecclAllGather(c.send, c.recv, c.count, c.type, c.comm, c.stream);
            },
    },
    MeasuredCollective{
        .name = "allgatherv",
        .description = "allgather by the function for unequal blocks",
        .sendBlocks = single,
        .recvBlocks = perRank,
        .sent = ownAlone,
        .received = aloneOfEach,
        .inPlaceBlock = ownBlock,
        .busFactor = othersShare,
        .call =
            [](const CollectiveCall& c) {
              const EqualParts parts(c);
              return moecclAllGatherv(c.send, c.count, c.recv, parts.counts, parts.displs, c.type,
                                      c.comm, c.stream);
            },
    },
    MeasuredCollective{
        .name = "reducescatter",
        .description = "the sum of all blocks i becomes the block of rank i",
        .sendBlocks = perRank,
        .recvBlocks = single,
        .sent = term,
        .received = ownSum,
        .sums = true,
        .inPlaceBlock = ownBlock,
        .busFactor = othersShare,
        .call =
            [](const CollectiveCall& c) {
              return moecclReduceScatter(c.send, c.recv, c.count, c.type, moecclSum, c.comm,
                                         c.stream);
            },
    },
    MeasuredCollective{
        .name = "reducescatterv",
        .description = "reducescatter by the function for unequal blocks",
        .sendBlocks = perRank,
        .recvBlocks = single,
        .sent = term,
        .received = ownSum,
        .sums = true,
        .inPlaceBlock = ownBlock,
        .busFactor = othersShare,
        .call =
            [](const CollectiveCall& c) {
              const EqualParts parts(c);
              return moecclReduceScatterv(c.send, parts.counts, parts.displs, c.recv, c.type,
                                          moecclSum, c.comm, c.stream);
            },
    },
    MeasuredCollective{
        .name = "allreduce",
        .description = "the sum of all blocks becomes the block of every rank",
        .sendBlocks = single,
        .recvBlocks = single,
        .sent = term,
        .received = fromRoot,
        .sums = true,
        .inPlaceBlock = onlyBlock,
        .busFactor = [](const World& world) { return 2 * othersShare(world); },
        .call =
            [](const CollectiveCall& c) {
              return moecclAllReduce(c.send, c.recv, c.count, c.type, moecclSum, c.comm, c.stream);
            },
    },
    MeasuredCollective{
        .name = "broadcast",
        .description = "the block of rank 0 becomes the block of every rank",
        .sendBlocks = single,
        .recvBlocks = single,
        .sent = fromRoot,
        .received = fromRoot,
        .busFactor = whole,
        .call =
            [](const CollectiveCall& c) {
              return moecclBroadcast(c.send, c.recv, c.count, c.type, 0, c.comm, c.stream);
            },
    },
    MeasuredCollective{
        .name = "reduce",
        .description = "the sum of all blocks becomes the block of rank 0",
        .sendBlocks = single,
        .recvBlocks = single,
        .sent = term,
        .received = fromRoot,
        .sums = true,
        .toRoot = true,
        .busFactor = whole,
        .call =
            [](const CollectiveCall& c) {
              return moecclReduce(c.send, c.recv, c.count, c.type, moecclSum, 0, c.comm, c.stream);
            },
    },
    MeasuredCollective{
        .name = "gather",
        .description = "the block of rank i becomes block i of rank 0",
        .sendBlocks = single,
        .recvBlocks = perRank,
        .sent = ownAlone,
        .received = aloneOfEach,
        .toRoot = true,
        .busFactor = othersShare,
        .call =
            [](const CollectiveCall& c) {
              return moecclGather(c.send, c.recv, c.count, c.type, 0, c.comm, c.stream);
            },
    },
    MeasuredCollective{
        .name = "scatter",
        .description = "block i of rank 0 becomes the block of rank i",
        .sendBlocks = perRank,
        .recvBlocks = single,
        .sent = ofRoot,
        .received = ownSum,
        .busFactor = othersShare,
        .call =
            [](const CollectiveCall& c) {
              return moecclScatter(c.send, c.recv, c.count, c.type, 0, c.comm, c.stream);
            },
    },
    MeasuredCollective{
        .name = "tpalltoall",
        .description = "block j of MP group i becomes block i of all ranks of MP group j",
        .usesGrid = true,
        .sendBlocks = groups,
        .recvBlocks = groups,
        .sent =
            [](const World& world, int rank, int block) {
              return BlockData{rank / world.grid.nMp, block};
            },
        .received =
            [](const World& world, int rank, int block) {
              return BlockData{block, rank / world.grid.nMp};
            },
        .busFactor =
            [](const World& world) {
              return static_cast<double>(groups(world) - 1) / groups(world);
            },
        .call =
            [](const CollectiveCall& c) {
              return moecclTpAllToAll(c.send, c.recv, c.count, c.type, c.grid, c.stream);
            },
    },
    MeasuredCollective{
        .name = "dispatch",
        .description = "every rank's tokens for an expert go to all of its shards",
        .usesGrid = true,
        .sendBlocks = tokenBlocks,
        .recvBlocks = expertBlocks,
        .sent = toEach,
        .received = atExpert,
        .busFactor = shardsShare,
        .call =
            [](const CollectiveCall& c) {
              return moecclDispatch(c.send, c.recv, c.count, c.world.experts, c.type, c.grid,
                                    c.stream);
            },
    },
    MeasuredCollective{
        .name = "combine",
        .description = "what the shards of an expert have for a rank returns to it, summed",
        .usesGrid = true,
        .sendBlocks = expertBlocks,
        .recvBlocks = tokenBlocks,
        .sent = partialSum,
        .received = toEach,
        .sums = true,
        .busFactor = shardsShare,
        .call =
            [](const CollectiveCall& c) {
              return moecclCombine(c.send, c.recv, c.count, c.world.experts, c.type, c.grid,
                                   c.stream);
            },
    },
    MeasuredCollective{
        .name = "combineallgather",
        .description = "combine, and an all-gather of its results in the MP group",
        .usesGrid = true,
        .sendBlocks = expertBlocks,
        .recvBlocks = sharedTokenBlocks,
        .sent = partialSum,
        .received = sharedTokens,
        .sums = true,
        .busFactor = shardsAndGroupsShare,
        .call =
            [](const CollectiveCall& c) {
              return moecclCombineAllGather(c.send, c.recv, c.count, c.world.experts, c.type,
                                            c.grid, c.stream);
            },
    },
    MeasuredCollective{
        .name = "splitdispatch",
        .description = "dispatch of each rank's share of what its MP group has in common",
        .usesGrid = true,
        .sendBlocks = sharedTokenBlocks,
        .recvBlocks = expertBlocks,
        .sent = sharedTokens,
        .received = atExpert,
        .busFactor = splitShardsShare,
        .call =
            [](const CollectiveCall& c) {
              return moecclSplitDispatch(c.send, c.recv, c.count, c.world.experts, c.type, c.grid,
                                         c.stream);
            },
    },
};

}  // namespace

int World::positionOf(int rank) const {
  return grid.order == moecclOrderEspEp ? rank / grid.nEsp : rank % grid.nEp;
}
int World::shardOf(int rank) const {
  return grid.order == moecclOrderEspEp ? rank % grid.nEsp : rank / grid.nEp;
}

std::string textOf(const moecclGridShape_t& shape) {
  return std::to_string(shape.nMp) + "x" + std::to_string(shape.nEp) + "x" +
         std::to_string(shape.nEsp) + (shape.order == moecclOrderEpEsp ? ":ep" : "");
}

std::span<const MeasuredCollective> collectives() { return kCollectives; }

}  // namespace moeccl::perf
