// Communicators: made in other ways, refused, given up and aborted.
#include <cstdint>
#include <vector>

#include "tests/api/exercise.h"
#include "tests/api/results.h"
#include "tests/gpu/ranks/rank.h"

namespace moeccl::gpu {
namespace {

using test::check;
using test::checkError;
using test::checkThat;

void works(const Rank& rank, moecclComm_t comm) {
  for (Collective collective : {Collective::allToAll, Collective::allReduce})
    test::exercise({.collective = collective, .count = 100, .device = &rank.device()}, comm,
                   nullptr, rank.stream());
}

RANKS_TEST(splits) {
  rank.step("odd and even ranks, backwards", [&] {
    moecclComm_t part = nullptr;
    check(moecclCommSplit(rank.comm(), rank.rank() % 2, -rank.rank(), &part, nullptr), rank.comm());
    int own = -1, members = 0;
    check(moecclCommUserRank(part, &own), part);
    check(moecclCommCount(part, &members), part);
    const int expected = (rank.ranks() + 1 - rank.rank() % 2) / 2;
    checkThat(members == expected && own == members - 1 - rank.rank() / 2, "other ranks");
    works(rank, part);
    check(moecclCommDestroy(part));
  });
  rank.step("all but the last rank", [&] {
    moecclComm_t part = nullptr;
    const bool last = rank.rank() == rank.ranks() - 1;
    check(moecclCommSplit(rank.comm(), last ? MOECCL_SPLIT_NOCOLOR : 0, 0, &part, nullptr),
          rank.comm());
    checkThat((part == nullptr) == last, "a communicator where there should be none, or none");
    if (part != nullptr) works(rank, part);
    check(moecclCommDestroy(part));
  });
}

RANKS_TEST(adoptsNcclCommunicators) {
  rank.step("a user's ncclComm_t", [&] {
    ncclComm* const theirs = rank.device().join(rank.comm());
    moecclComm_t comm = nullptr;
    check(moecclCommInitNccl(&comm, theirs, nullptr));
    rank.device().leave(theirs);
    int own = -1, members = 0;
    check(moecclCommUserRank(comm, &own), comm);
    check(moecclCommCount(comm, &members), comm);
    checkThat(own == rank.rank() && members == rank.ranks(), "other ranks than NCCL's");
    works(rank, comm);
    check(moecclCommDestroy(comm));
  });
}

RANKS_TEST(refusals) {
  const moecclComm_t comm = rank.comm();
  test::Device& device = rank.device();
  rank.step("buffers that overlap", [&] {
    unsigned char* const buffer = device.allocate(1024);
    const moecclResult_t result =
        moecclAllToAll(buffer, buffer, 1, moecclUint8, comm, rank.stream());
    device.free(buffer);
    checkError(result, moecclInvalidArgument, comm, {"overlap"});
    works(rank, comm);
  });
  rank.step("streams of the host's", [&] {
    moecclStream_t stream = nullptr;
    checkError(moecclStreamCreate(comm, &stream), moecclInvalidUsage, comm, {"cudaStreamCreate"});
  });
  rank.step("an all-to-all-v that relays without a bound", [&] {
    moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
    config.algorithms = "alltoallv=bruck";
    moecclComm_t relaying = nullptr;
    check(moecclCommSplit(comm, 0, rank.rank(), &relaying, &config), comm);
    const std::vector<std::size_t> zeros(static_cast<std::size_t>(rank.ranks()), 0);
    checkError(moecclAllToAllv(nullptr, zeros.data(), zeros.data(), nullptr, zeros.data(),
                               zeros.data(), moecclFloat32, relaying, rank.stream()),
               moecclInvalidUsage, relaying, {"alltoallv (bruck)", "on GPUs"});
    check(moecclCommDestroy(relaying));
  });
  if (rank.ranks() == 1) return;
  rank.step("ranks with other algorithms", [&] {
    moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
    config.algorithms = rank.rank() == 0 ? "alltoall=linear" : "alltoall=pairwise";
    moecclComm_t part = nullptr;
    checkError(moecclCommSplit(comm, 0, rank.rank(), &part, &config), moecclInvalidUsage, comm,
               {"linear", "pairwise"});
    works(rank, comm);
  });
  rank.step("ranks with other grids", [&] {
    moecclGrid_t grid = nullptr;
    const int shards = rank.rank() == 0 ? rank.ranks() : 1;
    checkError(moecclGridCreate(comm, {1, rank.ranks() / shards, shards, moecclOrderEspEp}, &grid),
               moecclInvalidUsage, comm, {"different shapes"});
    works(rank, comm);
  });
}

// The communicator of a test that leaves it broken, after calls that have made NCCL's connections:
// until then NCCL itself waits for the other ranks, on the host. All ranks are through with these
// calls, so that no rank breaks what another is still in.
moecclComm_t connected(const Rank& rank, std::int64_t timeoutMs) {
  moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
  config.timeoutMs = timeoutMs;
  config.algorithms = "alltoall=linear";
  moecclComm_t comm = nullptr;
  check(moecclCommSplit(rank.comm(), 0, rank.rank(), &comm, &config), rank.comm());
  works(rank, comm);
  works(rank, rank.comm());
  return comm;
}

// Memory for calls that nobody will complete.
struct Operands {
  explicit Operands(const Rank& rank, std::size_t count)
      : device(rank.device()),
        bytes(static_cast<std::size_t>(rank.ranks()) * count),
        in(device.allocate(bytes)),
        out(device.allocate(bytes)) {}
  ~Operands() {
    device.free(in);
    device.free(out);
  }
  test::Device& device;
  std::size_t bytes;
  unsigned char *in, *out;
};

// What a rank breaks its peers' NCCL notices, so it waits until they have seen what they should.
RANKS_TEST(abortsWhatNobodyMeets) {
  if (rank.ranks() == 1) return;
  rank.step("rank 0 calls alone, and all abort", [&] {
    const moecclComm_t comm = connected(rank, 0);
    const Operands operands(rank, 64);
    if (rank.rank() == 0) {
      check(moecclAllToAll(operands.in, operands.out, 64, moecclUint8, comm, rank.stream()), comm);
      moecclResult_t error = moecclInternalError;
      check(moecclCommGetAsyncError(comm, &error), comm);
      checkThat(error == moecclSuccess, "an error before there is one");
      check(moecclCommAbort(comm));
      rank.device().synchronize(rank.stream());
    }
    works(rank, rank.comm());
    if (rank.rank() != 0) check(moecclCommAbort(comm));
  });
}

// A rank whose count is 0 sends nothing, so the others wait for it, and ask.
RANKS_TEST(tellsRanksWithOtherCounts) {
  if (rank.ranks() == 1) return;
  rank.step("rank 0 comes with count 0", [&] {
    const moecclComm_t comm = connected(rank, 0);
    const Operands operands(rank, 64);
    const std::size_t count = rank.rank() == 0 ? 0 : 64;
    check(moecclAllToAll(operands.in, operands.out, count, moecclUint8, comm, rank.stream()), comm);
    if (rank.rank() != 0) {
      checkError(moecclCommDestroy(comm), moecclRemoteError, nullptr,
                 {"rank 0 called alltoall (linear) of 0 x uint8", "of 64 x uint8"});
      rank.device().synchronize(rank.stream());
    }
    works(rank, rank.comm());
    if (rank.rank() == 0) check(moecclCommAbort(comm));
  });
}

}  // namespace
}  // namespace moeccl::gpu
