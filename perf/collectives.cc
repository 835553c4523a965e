#include "perf/collectives.h"

#include <array>

namespace moeccl::perf {
namespace {

int perRank(int ranks) { return ranks; }
int single(int) { return 1; }
double othersShare(int ranks) { return static_cast<double>(ranks - 1) / ranks; }

constexpr std::array kCollectives = {
    Collective{
        .name = "alltoall",
        .description = "block j of rank i becomes block i of rank j",
        .sendBlocks = perRank,
        .recvBlocks = perRank,
        .sent =
            [](int rank, int block) {
              return Payload{rank, block};
            },
        .received =
            [](int rank, int block) {
              return Payload{block, rank};
            },
        .inPlaceBlock = nullptr,
        .busFactor = othersShare,
        .call = moecclAllToAll,
    },
    Collective{
        .name = "allgather",
        .description = "the block of rank i becomes block i of every rank",
        .sendBlocks = single,
        .recvBlocks = perRank,
        .sent =
            [](int rank, int) {
              return Payload{rank, 0};
            },
        .received =
            [](int, int block) {
              return Payload{block, 0};
            },
        .inPlaceBlock = [](int rank) { return rank; },
        .busFactor = othersShare,
        .call = moecclAllGather,
    },
};

}  // namespace

std::span<const Collective> collectives() { return kCollectives; }

}  // namespace moeccl::perf
