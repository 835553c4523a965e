// What the collectives with a root, and the barrier, promise beside what every collective does
// (collectives_test.cc).
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "moeccl/moeccl.h"
#include "tests/api/ranks.h"

namespace moeccl::test {
namespace {

constexpr std::size_t kCount = 1000;

std::vector<float> numbers(int rank, std::size_t count) {
  std::vector<float> all(count);
  std::iota(all.begin(), all.end(), static_cast<float>(100'000 * rank));
  return all;
}

TEST(Rooted, InPlaceAtTheRoot) {
  for (const int ranks : {1, 2, 5})
    for (int root = 0; root < ranks; ++root)
      runJob({.ranks = ranks}, [&](moecclComm_t comm, int rank) {
        const auto size = static_cast<std::size_t>(ranks),
                   at = static_cast<std::size_t>(rank) * kCount;
        std::vector<float> data = numbers(rank, kCount);
        check(moecclBroadcast(data.data(), data.data(), kCount, moecclFloat32, root, comm, nullptr),
              comm);
        checkThat(data == numbers(root, kCount), "broadcast");

        data = numbers(rank, kCount);
        check(moecclReduce(data.data(), data.data(), kCount, moecclFloat32, moecclMax, root, comm,
                           nullptr),
              comm);
        checkThat(data == numbers(rank == root ? ranks - 1 : rank, kCount), "reduce");

        std::vector<float> all = numbers(rank, size * kCount);
        check(
            moecclScatter(all.data(), all.data() + at, kCount, moecclFloat32, root, comm, nullptr),
            comm);
        const std::vector<float> expected = numbers(root, size * kCount);
        checkThat(std::equal(all.begin() + static_cast<std::ptrdiff_t>(at),
                             all.begin() + static_cast<std::ptrdiff_t>(at + kCount),
                             expected.begin() + static_cast<std::ptrdiff_t>(at)),
                  "scatter");
        check(moecclGather(all.data() + at, all.data(), kCount, moecclFloat32, root, comm, nullptr),
              comm);
        checkThat(rank != root || all == expected, "gather");
      });
}

TEST(Rooted, BuffersThatARankDoesNotUseMayBeNull) {
  runJob({.ranks = 3}, [&](moecclComm_t comm, int rank) {
    std::vector<int> one(4, rank), all(12, rank);
    const bool root = rank == 1;
    check(
        moecclBroadcast(root ? one.data() : nullptr, one.data(), 4, moecclInt32, 1, comm, nullptr),
        comm);
    checkThat(one[3] == 1, "broadcast");
    check(moecclReduce(one.data(), root ? all.data() : nullptr, 4, moecclInt32, moecclSum, 1, comm,
                       nullptr),
          comm);
    checkThat(!root || all[3] == 3, "reduce");
    check(moecclGather(one.data(), root ? all.data() : nullptr, 4, moecclInt32, 1, comm, nullptr),
          comm);
    checkThat(!root || all[11] == 1, "gather");
    check(moecclScatter(root ? all.data() : nullptr, one.data(), 4, moecclInt32, 1, comm, nullptr),
          comm);
  });
}

TEST(Rooted, WrongArgumentsAreNamed) {
  runJob({.ranks = 2}, [&](moecclComm_t comm, int rank) {
    std::vector<float> buffer(8);
    const auto refused = [&](moecclResult_t result, const char* said) {
      checkThat(result == moecclInvalidArgument, said);
      checkThat(std::string(moecclGetLastError(comm)).find(said) != std::string::npos,
                moecclGetLastError(comm));
    };
    float* const b = buffer.data();
    for (const int root : {-1, 2}) {
      const std::string said = "root is " + std::to_string(root) + "; it must be a rank, 0 to 1";
      refused(moecclBroadcast(b, b, 1, moecclFloat32, root, comm, nullptr), said.c_str());
      refused(moecclReduce(b, b, 1, moecclFloat32, moecclSum, root, comm, nullptr), said.c_str());
      refused(moecclGather(b, b + 4, 1, moecclFloat32, root, comm, nullptr), said.c_str());
      refused(moecclScatter(b, b + 4, 1, moecclFloat32, root, comm, nullptr), said.c_str());
    }
    refused(moecclBroadcast(b, nullptr, 1, moecclFloat32, 0, comm, nullptr), "recvbuff is NULL");
    refused(moecclReduce(nullptr, b, 1, moecclFloat32, moecclSum, 0, comm, nullptr),
            "sendbuff is NULL");
    if (rank == 0) {
      refused(moecclBroadcast(b, b + 1, 4, moecclFloat32, 0, comm, nullptr), "overlap");
      refused(moecclGather(b + 1, b, 2, moecclFloat32, 0, comm, nullptr),
              "recvbuff + root * sendCount");
      refused(moecclScatter(b, b + 1, 2, moecclFloat32, 0, comm, nullptr),
              "sendbuff + root * recvCount");
    }
    refused(moecclReduce(b, b, 1, moecclFloat32, moecclNumOps, 0, comm, nullptr), "op is 8");
    check(moecclBarrier(comm, nullptr), comm);
  });
}

TEST(Barrier, NobodyLeavesBeforeAllHaveCome) {
  for (const int ranks : {1, 2, 3, 5, 8}) {
    std::atomic<int> come = 0;
    runJob({.ranks = ranks}, [&](moecclComm_t comm, int rank) {
      for (int turn = 1; turn <= 20; ++turn) {
        if (turn % ranks == rank) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        ++come;
        check(moecclBarrier(comm, nullptr), comm);
        checkThat(come >= turn * ranks, "a rank left early");
        check(moecclBarrier(comm, nullptr), comm);
      }
    });
  }
}

}  // namespace
}  // namespace moeccl::test
