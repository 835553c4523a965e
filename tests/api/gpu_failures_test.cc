// Ranks on GPUs that end: the others' calls return, name them, and nobody else; what has been
// enqueued ends. Doubles stand for CUDA and NCCL. Ranks that are processes have a world each, in
// which no message arrives, as where a peer is dead; those that are threads share one.
#include <gtest/gtest.h>
#include <signal.h>

#include <barrier>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "moeccl/nccl.h"
#include "moeccl/route.h"
#include "src/api/handles.h"
#include "src/comm/gpu_communicator.h"
#include "tests/exec/gpu_jobs.h"

namespace moeccl::test {
namespace {

using Clock = std::chrono::steady_clock;

bool eventually(const std::function<bool()>& holds) {
  for (const auto end = Clock::now() + std::chrono::seconds(60); Clock::now() < end;) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

moecclResult_t awaitError(moecclComm_t comm) {
  moecclResult_t result = moecclSuccess;
  eventually([&] {
    check(moecclCommGetAsyncError(comm, &result), comm);
    return result != moecclSuccess;
  });
  return result;
}

std::vector<int> failedRanks(moecclComm_t comm) {
  std::vector<int> ranks(8);
  int count = 8;
  check(moecclCommGetFailedRanks(comm, ranks.data(), &count), comm);
  ranks.resize(static_cast<std::size_t>(count));
  return ranks;
}

// How the survivors find out.
struct Way {
  const char* name;
  bool onStream;
};

class GpuDeath : public testing::TestWithParam<Way> {};

// One after the other ends; whoever is left goes on.
TEST_P(GpuDeath, IsToldByNameAndEndsWhatIsEnqueued) {
  constexpr int kRanks = 4;
  Job job{.ranks = kRanks, .nodes = {2, 2}, .algorithms = {}};
  job.processes = true;
  job.memory = moecclMemoryCuda;
  job.dying = {1, 2};
  runParts(job, [&](Board& board, int rank) {
    GpuWorld world({});
    const GpusOfRanks gpus(world);
    moecclComm_t comm = join(job, board, rank);
    std::vector<int> left = {0, 1, 2, 3};
    int met = 0;
    const auto meet = [&](std::atomic<int>& where) {
      ++where;
      while (where < met) std::this_thread::yield();
    };
    std::array<int, kRanks> in{}, out{};
    for (const int victim : {2, 1}) {
      const auto place = static_cast<int>(std::ranges::find(left, victim) - left.begin());
      met += static_cast<int>(left.size());
      check(moecclAllGather(in.data(), out.data(), 1, moecclInt32, comm, nullptr), comm);
      meet(board.ready);
      if (rank == victim) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        raise(SIGKILL);
      }
      moecclComm_t part = nullptr;
      const moecclResult_t result =
          GetParam().onStream ? awaitError(comm) : moecclCommSplit(comm, 0, 0, &part, nullptr);
      EXPECT_EQ(result, moecclRemoteError);
      const std::string text = moecclGetLastError(comm);
      EXPECT_NE(text.find("rank " + std::to_string(place) + " on " + job.nodeNameOf(victim) +
                          " is dead: its process "),
                std::string::npos)
          << text;
      for (int other = 0; other < static_cast<int>(left.size()); ++other)
        EXPECT_EQ(other != place && text.find("rank " + std::to_string(other)) != text.npos, false)
            << text;
      EXPECT_EQ(failedRanks(comm), std::vector<int>{place});
      // What the caller waits for on the stream.
      EXPECT_TRUE(eventually([&] { return world.run(), world.stuck().empty(); })) << world.stuck();
      checkError(moecclBarrier(comm, nullptr), moecclRemoteError, comm, {"is dead"});
      moecclComm_t smaller = nullptr;
      check(moecclCommShrink(comm, nullptr, 0, &smaller, nullptr), comm);
      check(moecclCommAbort(comm));
      comm = smaller;
      std::erase(left, victim);
      int count = 0, number = -1;
      check(moecclCommCount(comm, &count), comm);
      check(moecclCommUserRank(comm, &number), comm);
      EXPECT_EQ(count, static_cast<int>(left.size()));
      EXPECT_EQ(left[static_cast<std::size_t>(number)], rank);
    }
    check(moecclCommDestroy(comm));
    EXPECT_EQ(world.problems(), "");
    EXPECT_TRUE(eventually([&] { return world.leftovers().empty(); })) << world.leftovers();
  });
}

INSTANTIATE_TEST_SUITE_P(processes, GpuDeath,
                         testing::Values(Way{"onStream", true}, Way{"blocking", false}),
                         [](const auto& info) { return std::string(info.param.name); });

GpuCommunicator& gpuCommunicatorOf(moecclComm_t comm) {
  return dynamic_cast<GpuCommunicator&>(communicatorOf(hold(comm)));
}

// The other threads take this rank for dead from now on.
void die(moecclComm_t comm) {
  struct Access : Watch {
    static void tell(Watch& watch) {
      (watch.*&Access::carry)(Kind::loss, bodyOf({watch.rank(), false, "its process 1 has ended"}));
    }
  };
  Access::tell(gpuCommunicatorOf(comm).job().watch());
}

class GpusThatFail : public testing::Test, public GpusOfJobs {
 protected:
  using GpusOfJobs::GpusOfJobs;

  void run(int ranks, const RankFunction& function, std::int64_t timeoutMs = 60000) {
    Job job{.ranks = ranks,
            .nodes = {1, ranks - 1},
            .algorithms = "allgather=linear;alltoall=linear;allreduce=linear"};
    job.timeoutMs = timeoutMs;
    GpusOfJobs::run(job, function);
  }
};

struct GpuDeaths : GpusThatFail {
  GpuDeaths() : GpusThatFail({.seed = 5, .threads = true}) {}
};

// Calls that are inside NCCL: where it ends those that block, and where none may block.
struct GpuCalls : GpusThatFail, testing::WithParamInterface<bool> {
  GpuCalls() : GpusThatFail({.seed = 5, .threads = true, .withoutRevoke = !GetParam()}) {}
};

INSTANTIATE_TEST_SUITE_P(All, GpuCalls, testing::Bool(), [](const auto& info) {
  return info.param ? std::string("block") : std::string("doNotBlock");
});

// It connects to the dead.
TEST_P(GpuCalls, EndWhereARankIsDead) {
  std::barrier<> over(3);
  std::array<int, 3> data{};
  run(3, [&](moecclComm_t comm, int rank) {
    over.arrive_and_wait();
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      die(comm);
    } else {
      checkError(moecclRecv(&data[rank], 1, moecclInt32, 1, 0, comm, nullptr), moecclRemoteError,
                 comm, {"rank 1 on node1 is dead: its process 1 has ended"});
    }
    over.arrive_and_wait();
    throw Aborts();
  });
}

// NCCL waits for ever for a rank that it connects to. Here nobody is dead.
TEST_P(GpuCalls, EndByTimeoutAtTheFirstMessageBetweenTwo) {
  std::barrier<> over(3);
  std::array<int, 3> data{};
  const auto move = [&](moecclComm_t comm, int rank) {
    return rank == 0 ? moecclSend(&data[0], 1, moecclInt32, 1, 0, comm, nullptr)
                     : moecclRecv(&data[1], 1, moecclInt32, 0, 0, comm, nullptr);
  };
  run(
      3,
      [&](moecclComm_t comm, int rank) {
        if (rank < 2) {
          check(move(comm, rank), comm);
          // Those two are connected: nobody waits for the other.
          if (rank == 0) check(move(comm, rank), comm);
        }
        over.arrive_and_wait();
        if (rank == 1) check(move(comm, rank), comm);
        myGpu().synchronize(nullptr);
        over.arrive_and_wait();
        if (rank == 0)
          checkError(moecclSend(&data[0], 1, moecclInt32, 2, 0, comm, nullptr), moecclTimeout, comm,
                     {"messages of rank 0: NCCL is not connected to rank 2 after 1500 ms"});
        if (rank == 0)
          checkError(moecclBarrier(comm, nullptr), moecclTimeout, comm, {"after 1500 ms"});
        over.arrive_and_wait();
        throw Aborts();
      },
      1500);
}

// After the first call of a kind ranks need not come at once, but what they need of NCCL later may
// connect them: here all have met, and one is refused memory.
TEST_P(GpuCalls, EndByTimeoutWhereARankHasFailed) {
  std::barrier<> over(2);
  std::array<std::array<int, 2>, 2> in{}, out{};
  run(
      2,
      [&](moecclComm_t comm, int rank) {
        if (rank == 1) myGpu().breakKernels("send of");
        checkError(
            moecclAllGather(in[rank].data(), out[rank].data(), 1, moecclInt32, comm, nullptr),
            rank == 1 ? moecclUnhandledCudaError : moecclTimeout, comm,
            {rank == 1 ? "launch failed" : "NCCL is not connected to rank 1 after 1500 ms"});
        myGpu().breakKernels("");
        over.arrive_and_wait();
        throw Aborts();
      },
      1500);
}

// NCCL's own functions connect ranks too.
TEST_P(GpuCalls, EndByTimeoutInAFunctionOfNccl) {
  std::barrier<> over(2);
  std::array<int, 2> data{};
  Job job{.ranks = 2, .nodes = {1, 1}, .algorithms = "allreduce=native", .timeoutMs = 1500};
  job.memory = moecclMemoryCuda;
  runJob(job, [&](moecclComm_t comm, int rank) {
    if (rank == 1) myGpu().breakKernels("NCCL's all-reduce");
    checkError(moecclAllReduce(&data[rank], &data[rank], 1, moecclInt32, moecclSum, comm, nullptr),
               rank == 1 ? moecclUnhandledCudaError : moecclTimeout, comm,
               {rank == 1 ? "launch failed" : "NCCL is not connected to all ranks after 1500 ms"});
    myGpu().breakKernels("");
    over.arrive_and_wait();
    throw Aborts();
  });
}

struct GpusThatAbortSlowly : GpusThatFail {
  GpusThatAbortSlowly() : GpusThatFail({.seed = 5, .threads = true, .slowAborts = true}) {}
};

// What has been interrupted may still be ending when the caller frees it: kernels read its memory
// until it has.
TEST_F(GpusThatAbortSlowly, KeepMemoryUntilAllHasEnded) {
  std::barrier<> over(2);
  std::array<int, 2> data{};
  Job job{.ranks = 2, .nodes = {1, 1}, .algorithms = "allreduce=native", .timeoutMs = 1500};
  job.memory = moecclMemoryCuda;
  runJob(job, [&](moecclComm_t comm, int rank) {
    // Ranks tell each other their colors through registered memory.
    moecclComm_t own = nullptr;
    check(moecclCommSplit(comm, rank, 0, &own, nullptr), comm);
    check(moecclCommDestroy(own));
    if (rank == 1) myGpu().breakKernels("NCCL's all-reduce");
    checkError(moecclAllReduce(&data[rank], &data[rank], 1, moecclInt32, moecclSum, comm, nullptr),
               rank == 1 ? moecclUnhandledCudaError : moecclTimeout, comm,
               {rank == 1 ? "launch failed" : "NCCL is not connected to all ranks"});
    myGpu().breakKernels("");
    over.arrive_and_wait();
    throw Aborts();
  });
}

// Another thread may be asking its communicator how it is.
TEST_F(GpuDeaths, AreAskedForWhileLanesAreThere) {
  std::array<std::array<int, 2>, 2> out{};
  run(2, [&](moecclComm_t comm, int rank) {
    check(moecclAllGather(&rank, out[rank].data(), 1, moecclInt32, comm, nullptr), comm);
    myGpu().synchronize(nullptr);
    std::atomic<bool> asks = false;
    myGpu().onAsyncError([&] {
      asks = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
    });
    GpuCommunicator& whole = gpuCommunicatorOf(comm);
    std::thread other([&] { EXPECT_EQ(whole.asyncFailure(), moecclSuccess); });
    checkThat(eventually([&] { return asks.load(); }), "nobody asks");
    whole.destroy();
    other.join();
    throw Aborts();
  });
}

// Lanes are made by all ranks together.
TEST_F(GpuDeaths, EndTheWaitForMoreLanes) {
  std::barrier<> over(3);
  run(3, [&](moecclComm_t comm, int rank) {
    const auto begin = Clock::now();
    moecclComm_t part = nullptr;
    if (rank == 1)
      die(comm);
    else
      checkError(moecclCommSplit(comm, 0, 0, &part, nullptr), moecclRemoteError, comm,
                 {"rank 1 on node1 is dead"});
    checkThat(Clock::now() - begin < std::chrono::seconds(30), "it was waited for");
    over.arrive_and_wait();
    throw Aborts();
  });
}

// NCCL sees a connection break before anybody knows why.
TEST_F(GpuDeaths, AreNamedWhereNcclIsFirst) {
  std::barrier<> over(2);
  run(2, [&](moecclComm_t comm, int rank) {
    over.arrive_and_wait();
    if (rank == 1) {
      world.breakDown(moecclRemoteError, "the wire is cut");
      over.arrive_and_wait();
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      die(comm);
    } else {
      over.arrive_and_wait();
      checkThat(awaitError(comm) == moecclRemoteError, "another error");
      const std::string text = moecclGetLastError(comm);
      checkThat(text.find("rank 1 on node1 is dead") != text.npos, text);
    }
    over.arrive_and_wait();
    throw Aborts();
  });
}

// The caller's own communicator is as it was.
TEST_F(GpuDeaths, EndLanesOfAdoptedCommunicatorsAlone) {
  std::barrier<> over(3);
  std::array<std::array<int, 3>, 3> in{}, out{};
  run(3, [&](moecclComm_t comm, int rank) {
    const std::unique_ptr<Device> device = myDevice();
    ncclComm* const theirs = device->join(comm);
    moecclComm_t adopted = nullptr;
    check(moecclCommInitNccl(&adopted, theirs, nullptr));
    check(moecclAllGather(&rank, out[rank].data(), 1, moecclInt32, adopted, nullptr), adopted);
    device->synchronize(nullptr);
    checkThat(out[rank] == std::array{0, 1, 2}, "wrong data");
    if (rank != 2)
      check(moecclAllGather(in[rank].data(), out[rank].data(), 1, moecclInt32, adopted, nullptr),
            adopted);
    over.arrive_and_wait();
    if (rank == 2) {
      die(adopted);
    } else {
      checkThat(awaitError(adopted) == moecclRemoteError, "another error");
      const std::string text = moecclGetLastError(adopted);
      // Without a node id it is this host's name.
      checkThat(text.find("rank 2 on ") != text.npos && text.find(" is dead") != text.npos, text);
      device->synchronize(nullptr);
    }
    over.arrive_and_wait();
    checkThat(myGpu().ranks(theirs) == 3, "the caller's communicator is gone");
    check(moecclCommAbort(adopted));
    device->leave(theirs);
  });
}

// What `survivors` have in common.
void expectWorks(moecclComm_t comm, const std::vector<int>& survivors, int me) {
  int count = 0;
  check(moecclCommCount(comm, &count), comm);
  checkThat(count == static_cast<int>(survivors.size()), "another number of ranks");
  std::vector<int> all(survivors.size(), -1);
  check(moecclAllGather(&me, all.data(), 1, moecclInt32, comm, nullptr), comm);
  myGpu().synchronize(nullptr);
  checkThat(all == survivors, "wrong data");
  // It can be what others are made of.
  moecclGrid_t grid = makeGrid(comm, {1, count, 1, moecclOrderEspEp});
  check(moecclGridDestroy(grid));
}

// Its own communicator too is as it was.
TEST_F(GpuDeaths, AndExcludedRanksAreLeftOutByShrink) {
  run(5, [](moecclComm_t comm, int rank) {
    moecclComm_t smaller = nullptr, smallest = nullptr;
    const std::vector<int> out = {1, 4};
    if (rank != 1 && rank != 4) {
      check(moecclCommShrink(comm, out.data(), 2, &smaller, nullptr), comm);
      expectWorks(smaller, {0, 2, 3}, rank);
      const int last = 2;
      if (rank != 3) {
        check(moecclCommShrink(smaller, &last, 1, &smallest, nullptr), smaller);
        expectWorks(smallest, {0, 2}, rank);
        check(moecclCommDestroy(smallest));
      }
      check(moecclCommDestroy(smaller));
    }
    expectWorks(comm, {0, 1, 2, 3, 4}, rank);
  });
}

// Parts of a split have nothing to do with each other.
TEST_F(GpuDeaths, MatterToTheirCommunicatorsAlone) {
  std::barrier<> over(4);
  run(4, [&](moecclComm_t comm, int rank) {
    moecclComm_t half = nullptr, smaller = nullptr;
    check(moecclCommSplit(comm, rank % 2, rank, &half, nullptr), comm);
    over.arrive_and_wait();
    if (rank == 3) die(comm);
    if (rank != 3) {
      checkThat(awaitError(comm) == moecclRemoteError, "another error");
      checkThat(failedRanks(comm) == std::vector<int>{3}, "others are lost");
    }
    if (rank % 2 == 0) {
      expectWorks(half, {0, 2}, rank);
      checkThat(failedRanks(half).empty(), "others are lost");
    } else if (rank == 1) {
      checkThat(awaitError(half) == moecclRemoteError, "another error");
      checkThat(failedRanks(half) == std::vector<int>{1}, "others are lost");
      check(moecclCommShrink(half, nullptr, 0, &smaller, nullptr), half);
      expectWorks(smaller, {1}, rank);
      check(moecclCommDestroy(smaller));
    }
    if (rank != 3) {
      check(moecclCommShrink(comm, nullptr, 0, &smaller, nullptr), comm);
      expectWorks(smaller, {0, 1, 2}, rank);
      check(moecclCommDestroy(smaller));
    }
    over.arrive_and_wait();
    check(moecclCommAbort(half));
    throw Aborts();
  });
}

struct GpuRevoke : GpuDeaths {
  static void expectRevoked(moecclComm_t comm, const char* text) {
    checkThat(awaitError(comm) == moecclRemoteError, "another error");
    checkError(moecclBarrier(comm, nullptr), moecclRemoteError, comm, {text});
    checkThat(failedRanks(comm).empty(), "ranks are lost");
  }
};

// As a thread does whose call has begun before another one aborts.
TEST(HostRevoke, ByOneWhoHoldsALeftCommunicatorReachesNoParts) {
  constexpr int kRanks = 4;
  std::barrier made(kRanks);
  runJob(Job{.ranks = kRanks, .nodes = {}, .algorithms = {}}, [&](moecclComm_t comm, int) {
    moecclGrid_t grid = nullptr;
    check(moecclGridCreate(comm, {1, 2, 2, moecclOrderEspEp}, &grid), comm);
    made.arrive_and_wait();
    const HeldComm held = hold(comm);
    check(moecclCommAbort(comm));
    check(moecclGridAbort(grid));
    held->revoke("late");
    EXPECT_EQ(held->asyncFailure(), moecclRemoteError);
    throw Aborted{};
  });
}

// What is enqueued ends, relatives go on, and so do all ranks on the next communicator.
TEST_F(GpuRevoke, EndsWhatIsEnqueuedOnAllRanks) {
  std::barrier<> over(3);
  std::array<std::array<int, 3>, 3> out{};
  run(3, [&](moecclComm_t comm, int rank) {
    const char* const text = "rank 2 revoked the communicator: bad batch";
    moecclComm_t other = nullptr, next = nullptr, group = nullptr;
    check(moecclCommSplit(comm, 0, rank, &other, nullptr), comm);
    moecclGrid_t grid = makeGrid(comm, {1, 3, 1, moecclOrderEspEp});
    expectWorks(comm, {0, 1, 2}, rank);
    // One rank makes no such call.
    if (rank != 2)
      check(moecclAllGather(&rank, out[rank].data(), 1, moecclInt32, comm, nullptr), comm);
    over.arrive_and_wait();
    if (rank == 2) check(moecclCommRevoke(comm, "bad batch"));
    expectRevoked(comm, text);
    myGpu().synchronize(nullptr);
    for (const moecclGroup_t each : {moecclGroupMp, moecclGroupEp, moecclGroupEsp}) {
      check(moecclGridGetComm(grid, each, &group));
      expectRevoked(group, "rank 2 revoked the grid's communicator: bad batch");
    }
    expectWorks(other, {0, 1, 2}, rank);
    check(moecclCommShrink(comm, nullptr, 0, &next, nullptr), comm);
    expectWorks(next, {0, 1, 2}, rank);
    check(moecclCommDestroy(next));
    check(moecclGridDestroy(grid));
    expectWorks(other, {0, 1, 2}, rank);
    check(moecclCommDestroy(other));
    over.arrive_and_wait();
  });
}

// Another thread's, which waits for a peer to connect.
TEST_F(GpuRevoke, EndsACallInsideNccl) {
  std::barrier<> over(2);
  std::array<int, 2> data{};
  run(2, [&](moecclComm_t comm, int rank) {
    if (rank == 0) {
      std::thread revoking([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        check(moecclCommRevoke(comm, nullptr));
      });
      checkError(moecclRecv(&data[0], 1, moecclInt32, 1, 0, comm, nullptr), moecclRemoteError, comm,
                 {"rank 0 revoked the communicator"});
      revoking.join();
    }
    expectRevoked(comm, "rank 0 revoked the communicator");
    over.arrive_and_wait();
  });
}

// Some ranks have made the communicator, and others are about to.
TEST_F(GpuRevoke, ReachesThoseWhoAreNotReady) {
  run(3, [&](moecclComm_t comm, int rank) {
    for (int round = 0; round < 20; ++round) {
      moecclComm_t part = nullptr;
      check(moecclCommSplit(comm, 0, rank, &part, nullptr), comm);
      if (rank == round % 3) check(moecclCommRevoke(part, "at once"));
      expectRevoked(part, "revoked the communicator: at once");
      check(moecclCommAbort(part));
    }
    expectWorks(comm, {0, 1, 2}, rank);
  });
}

TEST_F(GpuRevoke, LeavesAnAdoptedCommunicatorToItsOwner) {
  std::barrier<> over(3);
  run(3, [&](moecclComm_t comm, int rank) {
    const std::unique_ptr<Device> device = myDevice();
    ncclComm* const theirs = device->join(comm);
    moecclComm_t adopted = nullptr, next = nullptr;
    check(moecclCommInitNccl(&adopted, theirs, nullptr));
    expectWorks(adopted, {0, 1, 2}, rank);
    if (rank == 1) check(moecclCommRevoke(adopted, "enough"));
    expectRevoked(adopted, "rank 1 revoked the communicator: enough");
    over.arrive_and_wait();
    checkThat(myGpu().ranks(theirs) == 3, "the caller's communicator is gone");
    check(moecclCommShrink(adopted, nullptr, 0, &next, nullptr), adopted);
    check(moecclCommAbort(adopted));
    expectWorks(next, {0, 1, 2}, rank);
    check(moecclCommDestroy(next));
    device->leave(theirs);
    expectWorks(comm, {0, 1, 2}, rank);
  });
}

// Ranks whose calls differ, so that messages of two sizes meet, and stand for ever.
struct GpuMismatches : GpusThatFail {
  GpuMismatches() : GpusThatFail({.seed = 5, .threads = true, .sizesMayDiffer = true}) {}

  // From a call, or from what it has enqueued.
  static void expectMismatch(moecclResult_t called, moecclComm_t comm,
                             const std::vector<std::string>& parts) {
    if (called == moecclSuccess) called = awaitError(comm);
    EXPECT_EQ(called, moecclRemoteError);
    checkError(moecclBarrier(comm, nullptr), moecclRemoteError, comm, parts);
  }
};

// Whether ranks have met in calls of both kinds before, or are still inside NCCL.
TEST_F(GpuMismatches, OfCollectivesAreToldToAllRanks) {
  std::barrier<> over(3);
  std::array<std::array<int, 6>, 3> in{};
  std::array<std::array<int, 9>, 3> out{};
  for (const bool met : {true, false})
    run(3, [&](moecclComm_t comm, int rank) {
      const auto gather = [&] {
        return moecclAllGather(in[rank].data(), out[rank].data(), 3, moecclInt32, comm, nullptr);
      };
      const auto exchange = [&] {
        return moecclAllToAll(in[rank].data(), out[rank].data(), 2, moecclInt32, comm, nullptr);
      };
      if (met) {
        check(gather(), comm);
        check(exchange(), comm);
        myGpu().synchronize(nullptr);
      }
      expectMismatch(
          rank == 1 ? exchange() : gather(), comm,
          {"rank 1 called alltoall (linear", ") of 2 x int32", " called allgather (linear",
           "3 x int32", "the same calls, in the same order"});
      EXPECT_TRUE(eventually([&] { return world.run(), world.stuck().empty(); })) << world.stuck();
      EXPECT_EQ(failedRanks(comm), std::vector<int>());
      over.arrive_and_wait();
      throw Aborts();
    });
}

TEST_F(GpuMismatches, OfBucketsAreToldToAllRanks) {
  constexpr int kMost = 8, kHidden = 4;
  std::barrier<> over(3);
  std::array<std::array<std::int32_t, kMost>, 3> chosen{};
  std::array<std::array<float, kMost * kHidden>, 3> tokens{};
  std::array<std::array<float, 3 * kMost * kHidden>, 3> rows{};
  run(3, [&](moecclComm_t comm, int rank) {
    moecclGrid_t grid = makeGrid(comm, {1, 3, 1, moecclOrderEspEp});
    const std::int64_t bucket = 2;
    moecclRouteConfig_t config = MOECCL_ROUTE_CONFIG_INITIALIZER;
    config.experts = 3;
    config.weights = moecclRouteWeightsNone;
    config.datatype = moecclFloat32;
    config.mode = "latency";
    config.hidden = kHidden;
    config.maxTokens = kMost;
    config.buckets = &bucket;
    config.numBuckets = 1;
    moecclRoute_t route = nullptr;
    check(moecclRouteCreate(grid, &config, &route), comm);
    const auto dispatch = [&](std::int64_t count) {
      moecclRouting_t routing = MOECCL_ROUTING_INITIALIZER;
      routing.tokens = count;
      routing.experts = chosen[rank].data();
      moecclRoutePass_t pass = nullptr;
      check(moecclRouteBegin(route, &routing, nullptr, &pass), comm);
      return moecclPassDispatch(pass, tokens[rank].data(), rows[rank].data(), nullptr);
    };
    check(dispatch(rank), comm);
    myGpu().synchronize(nullptr);
    expectMismatch(dispatch(rank == 2 ? 3 : 2), comm,
                   {"rank 2 called token dispatch (", "latency mode) with room for 8 tokens",
                    "with room for 2 tokens of a rank"});
    EXPECT_TRUE(eventually([&] { return world.run(), world.stuck().empty(); })) << world.stuck();
    over.arrive_and_wait();
    check(moecclRouteDestroy(route));
    check(moecclGridAbort(grid));
    throw Aborts();
  });
}

// Ranks that are asked find nothing: they come late, or run calls in graphs, which do not count.
TEST_F(GpuMismatches, AreNotSeenWhereRanksAreLate) {
  std::barrier<> over(3);
  run(3, [&](moecclComm_t comm, int rank) {
    const Gpu::Stream stream = myGpu().newStream(false);
    std::array<int, 3> all{};
    int own = 0;
    const auto gather = [&] {
      check(moecclAllGather(&own, all.data(), 1, moecclInt32, comm, stream), comm);
    };
    const auto expect = [&](int step) {
      myGpu().synchronize(stream);
      EXPECT_EQ(all, (std::array{10 * step, 10 * step + 1, 10 * step + 2}));
    };
    std::shared_ptr<GpuDouble::Graph> graph;
    own = rank;
    gather();
    expect(0);
    for (int step = 1; step < 4; ++step) {
      over.arrive_and_wait();
      own = 10 * step + rank;
      if (rank == 1 && step > 1) std::this_thread::sleep_for(std::chrono::milliseconds(700));
      if (rank == 0 && step == 1) {
        myGpu().beginCapture(stream);
        gather();
        graph = myGpu().endCapture(stream);
      }
      if (rank == 0 && step < 3)
        myGpu().replay(*graph, stream);
      else
        gather();
      expect(step);
    }
    std::int32_t sums[2] = {rank, 1};
    check(moecclAllReduce(sums, sums, 2, moecclInt32, moecclSum, comm, stream), comm);
    myGpu().synchronize(stream);
    EXPECT_EQ(sums[0], 3);
    moecclResult_t error = moecclSuccess;
    check(moecclCommGetAsyncError(comm, &error), comm);
    EXPECT_EQ(error, moecclSuccess);
    over.arrive_and_wait();
  });
}

}  // namespace
}  // namespace moeccl::test
