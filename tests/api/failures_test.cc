// Ranks that end: the others' calls return soon, name them, and nobody else.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "moeccl/moe.h"
#include "moeccl/route.h"
#include "tests/api/ranks.h"
#include "tests/api/results.h"
#include "tests/job.h"

namespace moeccl::test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kRanks = 8;

// Processes on two nodes, of which those that are `dying` kill themselves.
Job jobOf(const std::set<int>& dying, int ranks = kRanks) {
  Job job{.ranks = ranks, .nodes = {ranks / 2, ranks / 2}, .algorithms = {}};
  job.processes = true;
  job.dying = dying;
  return job;
}

// How calls are made.
struct Way {
  const char* name;
  const char* algorithms;
  bool onStream, progressThread;
};

class Death : public testing::TestWithParam<Way> {};

// Exchanges until it fails; returns the text.
std::string untilFailure(moecclComm_t comm, bool onStream, const std::function<void(int)>& before) {
  std::vector<float> in(64 * 1024, 1.0f), out(kRanks * in.size());
  moecclStream_t stream = nullptr;
  if (onStream) check(moecclStreamCreate(comm, &stream), comm);
  std::string text;
  for (int round = 0; text.empty(); ++round) {
    before(round);
    moecclResult_t result = moecclSuccess;
    const bool gathers = round % 2 == 0;
    if (gathers)
      result = moecclAllGather(in.data(), out.data(), 1024, moecclFloat32, comm, stream);
    else
      result =
          moecclAllReduce(in.data(), out.data(), in.size(), moecclFloat32, moecclSum, comm, stream);
    bool ofCall = result != moecclSuccess;
    if (!ofCall && onStream) result = moecclStreamSynchronize(stream);
    if (result != moecclSuccess) {
      text = moecclGetLastError(ofCall ? comm : nullptr);
      EXPECT_EQ(result, moecclRemoteError) << text;
    }
  }
  if (stream != nullptr) moecclStreamDestroy(stream);
  return text;
}

TEST_P(Death, IsToldByNameAndSoon) {
  for (int victim : {0, 3, 6}) {
    SCOPED_TRACE("rank " + std::to_string(victim) + " dies");
    Job job = jobOf({victim});
    job.algorithms = GetParam().algorithms;
    job.progressThread = GetParam().progressThread;
    const Shared<std::atomic<Clock::rep>> killed;  // when
    runParts(job, [&](Board& board, int rank) {
      moecclComm_t comm = join(job, board, rank);
      const std::string text = untilFailure(comm, GetParam().onStream, [&](int round) {
        if (rank != victim || round < 3 + victim) return;
        *killed = Clock::now().time_since_epoch().count();
        raise(SIGKILL);
      });
      // Most of it is the machine's other work.
      EXPECT_LT(Clock::now().time_since_epoch() - Clock::duration(killed->load()),
                std::chrono::seconds(10));
      expectNamed(job, text, victim);
      int failed[kRanks] = {}, count = kRanks;
      check(moecclCommGetFailedRanks(comm, failed, &count), comm);
      EXPECT_EQ(count, 1);
      EXPECT_EQ(failed[0], victim);
      // The text stays.
      check(moecclCommGetFailedRanks(comm, nullptr, &(count = 0)), comm);
      EXPECT_EQ(count, 1);
      ++board.over;
      while (board.over < kRanks - 1) std::this_thread::yield();
      EXPECT_EQ(moecclAllGather(&rank, failed, 1, moecclInt32, comm, nullptr), moecclRemoteError);
      expectNamed(job, moecclGetLastError(comm), victim);
      check(moecclCommAbort(comm));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, Death,
                         testing::Values(Way{"blocking", "", false, false},
                                         Way{"hierarchical",
                                             "allreduce=hierarchical;allgather=hierarchical", false,
                                             false},
                                         Way{"onStreams", "", true, false},
                                         Way{"progressThread", "", true, true}),
                         [](const auto& info) { return std::string(info.param.name); });

// Who is in no call learns of it too.
TEST(Deaths, AreKnownOutsideOfCalls) {
  constexpr int kVictim = 5;
  const Job job = jobOf({kVictim});
  runParts(job, [&](Board& board, int rank) {
    moecclComm_t comm = join(job, board, rank);
    ++board.ready;
    while (board.ready < kRanks) std::this_thread::yield();
    if (rank == kVictim) raise(SIGKILL);
    const auto limit = Clock::now() + std::chrono::seconds(20);
    int failed = -1, count = 0;
    while (count == 0 && Clock::now() < limit) {
      count = 1;
      check(moecclCommGetFailedRanks(comm, &failed, &count), comm);
      std::this_thread::sleep_for(milliseconds(1));
    }
    EXPECT_EQ(count, 1);
    EXPECT_EQ(failed, kVictim);
    moecclResult_t state = moecclSuccess;
    check(moecclCommGetAsyncError(comm, &state), comm);
    EXPECT_EQ(state, moecclRemoteError);
    ++board.over;
    while (board.over < kRanks - 1) std::this_thread::yield();
    check(moecclCommAbort(comm));
  });
}

// A rank of another part of a split is nobody's concern.
TEST(Deaths, OfOthersDoNotMatter) {
  constexpr int kVictim = 2;
  const Job job = jobOf({kVictim});
  runParts(job, [&](Board& board, int rank) {
    moecclComm_t comm = join(job, board, rank), half = nullptr;
    check(moecclCommSplit(comm, rank % 2, rank, &half, nullptr), comm);
    ++board.ready;
    while (board.ready < kRanks) std::this_thread::yield();
    if (rank == kVictim) raise(SIGKILL);
    int failed = -1, count = 0;
    while (count == 0) check(moecclCommGetFailedRanks(comm, nullptr, &(count = 0)), comm);
    int mine[kRanks / 2] = {};
    const moecclResult_t result = moecclAllGather(&rank, mine, 1, moecclInt32, half, nullptr);
    check(moecclCommGetFailedRanks(half, &failed, &(count = 1)), half);
    if (rank % 2 == 1) {
      EXPECT_EQ(result, moecclSuccess) << moecclGetLastError(half);
      for (int i = 0; i < kRanks / 2; ++i) EXPECT_EQ(mine[i], 2 * i + 1);
      EXPECT_EQ(count, 0);
    } else {
      EXPECT_EQ(result, moecclRemoteError);
      const std::string text = moecclGetLastError(half);
      EXPECT_NE(text.find("rank 1 on node0 is dead"), std::string::npos) << text;  // of the half
      EXPECT_EQ(count, 1);
      EXPECT_EQ(failed, 1);
    }
    ++board.over;
    while (board.over < kRanks - 1) std::this_thread::yield();
    check(moecclCommAbort(half));
    check(moecclCommAbort(comm));
  });
}

// Seconds of computing, and config.failureDetectionMs.
class Computing : public testing::TestWithParam<std::pair<int, int>> {};

// However long: connections with data have no deadline of their own.
TEST_P(Computing, IsNoDeath) {
  const int seconds = GetParam().first, detectionMs = GetParam().second;
  setenv("MOECCL_TEST_PROCESSES", "tcp", 1);
  Job job = jobOf({}, 2);
  job.failureDetectionMs = detectionMs;
  runParts(job, [&](Board& board, int rank) {
    moecclComm_t comm = join(job, board, rank);
    // Messages that the receiver has memory for: their senders fill its connection.
    constexpr int kMessages = 16;
    std::vector<char> data(std::size_t{4} << 20);
    for (const int sender : {0, 1}) {
      if (rank != sender)
        for (const auto end = Clock::now() + std::chrono::seconds(seconds); Clock::now() < end;) {
        }
      for (int message = 0; message < kMessages; ++message) {
        std::ranges::fill(data, rank == sender ? 'x' : 'y');
        if (rank == sender)
          check(moecclSend(data.data(), data.size(), moecclInt8, 1 - rank, 0, comm, nullptr), comm);
        else
          check(moecclRecv(data.data(), data.size(), moecclInt8, sender, 0, comm, nullptr), comm);
        EXPECT_EQ(std::ranges::count(data, 'x'), static_cast<std::ptrdiff_t>(data.size()));
      }
    }
    check(moecclCommDestroy(comm));
  });
  unsetenv("MOECCL_TEST_PROCESSES");
}

INSTANTIATE_TEST_SUITE_P(All, Computing, testing::Values(std::pair(4, 1000)));
INSTANTIATE_TEST_SUITE_P(Slow, Computing, testing::Values(std::pair(20, 0)));

// However much the others have to tell who is stopped.
TEST(Stopping, IsNoDeath) {
  constexpr int kMembers = 4, kStopped = 3, kTold = 1000;
  Job job = jobOf({}, kMembers);
  job.failureDetectionMs = 1000;
  runParts(job, [&](Board& board, int rank) {
    moecclComm_t comm = join(job, board, rank), others = nullptr;
    check(moecclCommSplit(comm, rank == kStopped ? MOECCL_SPLIT_NOCOLOR : 0, 0, &others, nullptr),
          comm);
    if (rank == kStopped) {
      const pid_t self = getpid(), waker = fork();
      if (waker == 0) {
        kill(self, SIGSTOP);
        ++board.ready;
        while (board.over < kMembers - 1) std::this_thread::sleep_for(milliseconds(1));
        kill(self, SIGCONT);
        _exit(0);
      }
      while (board.ready == 0) std::this_thread::yield();
      int status = 0;
      waitpid(waker, &status, 0);
    } else {
      while (board.ready == 0) std::this_thread::yield();
      for (int i = 0; i < kTold; ++i) {
        moecclComm_t part = nullptr;
        check(moecclCommSplit(others, 0, 0, &part, nullptr), others);
        check(moecclCommAbort(part), others);
      }
      std::this_thread::sleep_for(milliseconds(3 * job.failureDetectionMs));
      ++board.over;
    }
    int failed = 0;
    check(moecclBarrier(comm, nullptr), comm);
    check(moecclCommGetFailedRanks(comm, nullptr, &failed), comm);
    EXPECT_EQ(failed, 0);
    if (others != nullptr) check(moecclCommAbort(others), comm);
    check(moecclCommDestroy(comm), comm);
  });
}

// Who destroys does not wait for who has ended meanwhile.
TEST(Deaths, EndADestroy) {
  constexpr int kVictim = 3;
  const Job job = jobOf({kVictim});
  runParts(job, [&](Board& board, int rank) {
    moecclComm_t comm = join(job, board, rank);
    int sum = 0;
    check(moecclAllReduce(&rank, &sum, 1, moecclInt32, moecclSum, comm, nullptr), comm);
    if (rank == kVictim) {
      while (board.ready < kRanks - 1) std::this_thread::yield();
      std::this_thread::sleep_for(milliseconds(100));
      raise(SIGKILL);
    }
    ++board.ready;
    const auto start = Clock::now();
    check(moecclCommDestroy(comm));
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(20));
  });
}

// Nor for who has left otherwise, in its own node or another one.
TEST(Aborts, EndADestroy) {
  const std::set<int> aborting = {2, 3, 6};
  const Job job = jobOf({});
  runParts(job, [&](Board& board, int rank) {
    moecclComm_t comm = join(job, board, rank);
    const int destroying = kRanks - static_cast<int>(aborting.size());
    if (aborting.contains(rank)) {
      while (board.ready < destroying) std::this_thread::yield();
      std::this_thread::sleep_for(milliseconds(100));
      check(moecclCommAbort(comm));
      // The process goes on.
      while (board.over < destroying) std::this_thread::sleep_for(milliseconds(1));
      return;
    }
    ++board.ready;
    const auto start = Clock::now();
    check(moecclCommDestroy(comm));
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(20));
    ++board.over;
  });
}

// What `survivors` have in common, by a gather and a reduction of everyone's rank in the job.
void expectWorks(moecclComm_t comm, const std::vector<int>& survivors, int me) {
  int count = 0, rank = -1;
  check(moecclCommCount(comm, &count), comm);
  check(moecclCommUserRank(comm, &rank), comm);
  ASSERT_EQ(count, static_cast<int>(survivors.size()));
  EXPECT_EQ(survivors[static_cast<std::size_t>(rank)], me);
  std::vector<int> all(survivors.size());
  check(moecclAllGather(&me, all.data(), 1, moecclInt32, comm, nullptr), comm);
  EXPECT_EQ(all, survivors);
  std::vector<int> in(50000, me), sum(in.size());
  check(moecclAllReduce(in.data(), sum.data(), in.size(), moecclInt32, moecclSum, comm, nullptr),
        comm);
  int expected = 0;
  for (int survivor : survivors) expected += survivor;
  EXPECT_EQ(sum, std::vector<int>(in.size(), expected));
}

void expectRoutesAndLayers(moecclGrid_t grid) {
  moecclRouteConfig_t routing = MOECCL_ROUTE_CONFIG_INITIALIZER;
  routing.experts = 7;
  routing.topK = 1;
  routing.hidden = 4;
  moecclRoute_t route = nullptr;
  check(moecclRouteCreate(grid, &routing, &route));
  const std::int32_t chosen = 6;
  const float weight = 1;
  moecclRouting_t one = MOECCL_ROUTING_INITIALIZER;
  one.tokens = 1;
  one.experts = &chosen;
  one.weights = &weight;
  moecclRoutePass_t pass = nullptr;
  check(moecclRouteBegin(route, &one, nullptr, &pass));
  moecclRows_t rows = MOECCL_ROWS_INITIALIZER;
  check(moecclPassGetRows(pass, &rows));
  moecclRouteInfo_t info = MOECCL_ROUTE_INFO_INITIALIZER;
  check(moecclRouteGetInfo(route, &info));
  EXPECT_EQ(rows.rows, info.firstExpert + info.localExperts == 7 ? 5 : 0);
  check(moecclPassEnd(pass));
  check(moecclRouteDestroy(route));
  moecclMoeConfig_t config = MOECCL_MOE_CONFIG_INITIALIZER;
  config.tokens = config.embedding = config.hidden = 4;
  config.experts = 5;
  config.topK = 1;
  config.capacityFactor = 1;
  moecclMoeLayer_t layer = nullptr;
  check(moecclMoeLayerCreate(grid, &config, &layer));
  check(moecclMoeLayerDestroy(layer));
}

// One after the other ends, at any moment; those that are left go on, down to the last.
TEST(Shrink, GoesOnWithThoseThatLive) {
  for (const bool exits : {false, true}) {
    const std::vector<int> order = {2, 0, 7, 5, 4, 1, 3, 6};
    const std::set<int> dying(order.begin(), order.begin() + (exits ? 0 : kRanks - 1));
    const Job job = jobOf(dying);
    runParts(job, [&](Board& board, int rank) {
      moecclComm_t comm = join(job, board, rank);
      std::vector<int> left = {0, 1, 2, 3, 4, 5, 6, 7};
      int met = 0;
      for (int victim : order) {
        expectWorks(comm, left, rank);
        if (left.size() == 1) break;
        ++board.ready;
        met += static_cast<int>(left.size());
        while (board.ready < met) std::this_thread::yield();
        if (rank == victim && exits) _exit(0);
        if (rank == victim) raise(SIGKILL);
        std::erase(left, victim);
        const std::string text = untilFailure(comm, false, [](int) {});
        moecclComm_t smaller = nullptr;
        check(moecclCommShrink(comm, nullptr, 0, &smaller, nullptr), comm);
        check(moecclCommAbort(comm));
        comm = smaller;
      }
      check(moecclCommDestroy(comm));
    });
  }
}

// Ranks end while the others shrink; grids, routes and layers can be made of what is left.
TEST(Shrink, OfRanksThatEndMeanwhile) {
  for (int delay : {0, 300, 1000, 3000, 8000, 20000}) {
    SCOPED_TRACE(delay);
    const Job job = jobOf({1, 3, 6});
    runParts(job, [&](Board& board, int rank) {
      moecclComm_t comm = join(job, board, rank), smaller = nullptr;
      ++board.ready;  // an end while others are still making the communicator is their error
      while (board.ready < kRanks) std::this_thread::yield();
      if (rank == 3) raise(SIGKILL);
      untilFailure(comm, false, [](int) {});
      if (rank == 1 || rank == 6)
        std::thread([rank, delay] {
          std::this_thread::sleep_for(std::chrono::microseconds(delay * (1 + rank / 3)));
          raise(SIGKILL);
        }).detach();
      std::vector<int> left;
      for (;;) {
        check(moecclCommShrink(comm, nullptr, 0, &smaller, nullptr), comm);
        check(moecclCommAbort(comm));
        comm = smaller;
        int count = 0;
        check(moecclCommCount(comm, &count), comm);
        left.assign(static_cast<std::size_t>(count), -1);
        const moecclResult_t result =
            moecclAllGather(&rank, left.data(), 1, moecclInt32, comm, nullptr);
        if (result == moecclSuccess && count == 5) break;
        if (rank == 1 || rank == 6 || result == moecclSuccess)
          untilFailure(comm, false, [](int) {});
      }
      EXPECT_EQ(left, (std::vector<int>{0, 2, 4, 5, 7}));
      expectWorks(comm, left, rank);
      moecclGrid_t grid = makeGrid(comm, {1, 5, 1, moecclOrderEspEp});
      expectRoutesAndLayers(grid);
      check(moecclGridDestroy(grid));
      check(moecclCommDestroy(comm));
    });
  }
}

// Threads too, and without any failure. Whoever is excluded learns of it if he asks.
TEST(Shrink, LeavesOutWhoIsExcluded) {
  for (const bool processes : {false, true}) {
    Job job{.ranks = 5, .nodes = {3, 2}, .algorithms = {}};
    job.processes = processes;
    runJob(job, [](moecclComm_t comm, int rank) {
      moecclComm_t smaller = nullptr;
      const std::vector<int> out = {1, 4};
      if (rank == 1) {
        const int other = 4;
        checkError(moecclCommShrink(comm, &other, 1, &smaller, nullptr), moecclInvalidUsage, comm,
                   {"rank 1", "excluded"});
      } else if (rank != 4) {
        check(moecclCommShrink(comm, out.data(), 2, &smaller, nullptr), comm);
        expectWorks(smaller, {0, 2, 3}, rank);
        check(moecclCommDestroy(smaller));
      }
      // The other is as it was.
      std::vector<int> all(5);
      check(moecclAllGather(&rank, all.data(), 1, moecclInt32, comm, nullptr), comm);
      EXPECT_EQ(all, (std::vector<int>{0, 1, 2, 3, 4}));
    });
  }
}

// They have one number, as they come from one split, and nothing else in common.
TEST(Shrink, PartsOfASplitShrinkByThemselves) {
  for (const bool processes : {false, true}) {
    Job job{.ranks = kRanks, .nodes = {4, 4}, .algorithms = {}};
    job.processes = processes;
    runJob(job, [](moecclComm_t comm, int rank) {
      moecclComm_t half = nullptr, smaller = nullptr;
      const int color = rank % 2, out = 1 + color;
      check(moecclCommSplit(comm, color, rank, &half, nullptr), comm);
      // The others have decided by then.
      if (color == 1) std::this_thread::sleep_for(milliseconds(200));
      if (rank / 2 != out) {
        check(moecclCommShrink(half, &out, 1, &smaller, nullptr), half);
        expectWorks(smaller, color == 0 ? std::vector{0, 4, 6} : std::vector{1, 3, 7}, rank);
        check(moecclCommDestroy(smaller));
      }
      check(moecclCommDestroy(half));
    });
  }
}

TEST(Shrink, AfterAnAbort) {
  for (const bool processes : {false, true}) {
    Job job{.ranks = 4, .nodes = {2, 2}, .algorithms = {}};
    job.processes = processes;
    runJob(job, [](moecclComm_t comm, int rank) {
      if (rank == 2) throw Aborts{};
      int all[4];
      checkError(moecclAllGather(&rank, all, 1, moecclInt32, comm, nullptr), moecclRemoteError,
                 comm, {"rank 2"});
      moecclComm_t smaller = nullptr;
      check(moecclCommShrink(comm, nullptr, 0, &smaller, nullptr), comm);
      expectWorks(smaller, {0, 1, 3}, rank);
      check(moecclCommDestroy(smaller));
    });
  }
}

TEST(Shrink, NamesWhoDoesNotCome) {
  Job job{.ranks = 3, .nodes = {}, .algorithms = {}};
  job.timeoutMs = 700;
  runJob(job, [](moecclComm_t comm, int rank) {
    moecclComm_t smaller = nullptr;
    if (rank == 1)
      std::this_thread::sleep_for(milliseconds(1500));
    else
      checkError(moecclCommShrink(comm, nullptr, 0, &smaller, nullptr), moecclTimeout, comm,
                 {"rank 1"});
    throw Aborts{};
  });
}

TEST(Shrink, WrongArguments) {
  runJob({.ranks = 2, .nodes = {}, .algorithms = {}}, [](moecclComm_t comm, int rank) {
    moecclComm_t smaller = nullptr;
    const auto wrong = [&](moecclResult_t result, const std::vector<std::string>& parts) {
      checkError(result, moecclInvalidArgument, comm, parts);
    };
    const int none = 2, negative = -1;
    wrong(moecclCommShrink(comm, nullptr, 0, nullptr, nullptr),
          {"moecclCommShrink", "newComm is NULL"});
    wrong(moecclCommShrink(comm, nullptr, 1, &smaller, nullptr), {"exclude is NULL"});
    wrong(moecclCommShrink(comm, &none, -1, &smaller, nullptr), {"nExclude is -1"});
    wrong(moecclCommShrink(comm, &none, 3, &smaller, nullptr), {"nExclude is 3", "0 to 2"});
    wrong(moecclCommShrink(comm, &none, 1, &smaller, nullptr), {"exclude[0] is 2", "[0, 2)"});
    wrong(moecclCommShrink(comm, &negative, 1, &smaller, nullptr), {"exclude[0] is -1"});
    wrong(moecclCommShrink(comm, &rank, 1, &smaller, nullptr),
          {"exclude[0]", "the rank that calls"});
    int count = -1;
    wrong(moecclCommGetFailedRanks(comm, nullptr, nullptr), {"nRanks is NULL"});
    wrong(moecclCommGetFailedRanks(comm, &count, &count), {"*nRanks is -1"});
    wrong(moecclCommGetFailedRanks(comm, nullptr, &(count = 1)), {"ranks is NULL"});
    checkError(moecclCommGetFailedRanks(nullptr, &count, &count), moecclInvalidArgument, nullptr,
               {"comm is NULL"});
    checkError(moecclCommShrink(nullptr, nullptr, 0, &smaller, nullptr), moecclInvalidArgument,
               nullptr, {"comm is NULL"});
  });
}

}  // namespace
}  // namespace moeccl::test
