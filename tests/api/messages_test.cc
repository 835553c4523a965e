// Sends and receives, groups, events, timeouts of calls, subsets and what becomes of a released
// communicator.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "moeccl/moeccl.h"
#include "tests/api/ranks.h"

namespace moeccl::test {
namespace {

using namespace std::chrono_literals;

struct Carrier {
  const char* name;
  bool processes, ucx, progressThread;
};
constexpr Carrier kCarriers[] = {{"loopback", false, false, false},
                                 {"loopbackProgressThread", false, false, true},
                                 {"ucxThreads", false, true, false},
                                 {"processes", true, false, false},
                                 {"processesProgressThread", true, false, true}};

void PrintTo(const Carrier& carrier, std::ostream* out) { *out << carrier.name; }

class Messages : public testing::TestWithParam<Carrier> {
 protected:
  Job job(int ranks) const {
    return {.ranks = ranks,
            .processes = GetParam().processes,
            .ucx = GetParam().ucx,
            .progressThread = GetParam().progressThread};
  }
};

// Threads of the library end what was released; a test that forks must not meet them.
void awaitReleases(const Carrier& carrier) {
  if (!carrier.processes) std::this_thread::sleep_for(500ms);
}

std::vector<int> numbers(int from, std::size_t count) {
  std::vector<int> all(count);
  std::iota(all.begin(), all.end(), from);
  return all;
}

// Small ones, and some that wait for their receive.
constexpr std::size_t kCounts[] = {0, 1, 1000, 300'000};

TEST_P(Messages, EverybodySendsToEverybodyInOneGroup) {
  runJob(job(4), [](moecclComm_t comm, int rank) {
    for (const bool onStream : {false, true})
      for (const std::size_t count : kCounts) {
        moecclStream_t stream = nullptr;
        if (onStream) check(moecclStreamCreate(comm, &stream), comm);
        std::vector<std::vector<int>> out, in(4, std::vector<int>(count, -1));
        for (int peer = 0; peer < 4; ++peer) out.push_back(numbers(100 * rank + peer, count));
        check(moecclGroupStart());
        for (int peer = 0; peer < 4; ++peer) {
          check(moecclSend(out[peer].data(), count, moecclInt32, peer, 7, comm, stream), comm);
          check(moecclRecv(in[peer].data(), count, moecclInt32, peer, 7, comm, stream), comm);
        }
        check(moecclGroupEnd(), comm);
        check(moecclStreamSynchronize(stream), comm);
        for (int peer = 0; peer < 4; ++peer)
          checkThat(in[peer] == numbers(100 * peer + rank, count), "wrong data");
        check(moecclStreamDestroy(stream));
      }
  });
}

TEST_P(Messages, TagsTellMessagesApartAndOneTagKeepsItsOrder) {
  runJob(job(2), [](moecclComm_t comm, int rank) {
    for (const std::size_t count : kCounts) {
      const int tags[] = {5, -1, 5, 1 << 30, 5};
      std::vector<std::vector<int>> data;
      for (int i = 0; i < 5; ++i) data.push_back(numbers(rank == 0 ? 1000 * i : -1, count));
      moecclStream_t streams[5];
      for (moecclStream_t& stream : streams) check(moecclStreamCreate(comm, &stream), comm);
      // Those of one tag in their order, the others whenever.
      const int receives[] = {3, 0, 1, 2, 4};
      for (int i = 0; i < 5; ++i) {
        const int which = rank == 0 ? i : receives[i];
        std::vector<int>& buffer = data[static_cast<std::size_t>(which)];
        if (rank == 0)
          check(moecclSend(buffer.data(), count, moecclInt32, 1, tags[which], comm, streams[i]),
                comm);
        else
          check(moecclRecv(buffer.data(), count, moecclInt32, 0, tags[which], comm, streams[i]),
                comm);
      }
      for (moecclStream_t stream : streams) {
        check(moecclStreamSynchronize(stream));
        check(moecclStreamDestroy(stream));
      }
      for (int i = 0; i < 5; ++i)
        checkThat(data[static_cast<std::size_t>(i)] == numbers(1000 * i, count), "wrong message");
    }
  });
}

TEST_P(Messages, OfAnybody) {
  runJob(job(4), [](moecclComm_t comm, int rank) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{300'000}}) {
      const std::vector<int> mine = numbers(1000 * rank, count);
      if (rank != 0) {
        check(moecclSend(mine.data(), count, moecclInt32, 0, 3, comm, nullptr), comm);
        check(moecclSend(mine.data(), count, moecclInt32, 0, 4, comm, nullptr), comm);
      } else {
        // One that names its rank does not take what is for an earlier one of anybody.
        int sources[3];
        std::vector<std::vector<int>> in(3, std::vector<int>(count));
        for (int i = 0; i < 3; ++i)
          check(moecclRecvAny(in[i].data(), count, moecclInt32, 3, &sources[i], comm, nullptr),
                comm);
        std::vector<bool> seen(4);
        for (int i = 0; i < 3; ++i) {
          checkThat(sources[i] >= 1 && sources[i] < 4 && !seen[sources[i]], "wrong source");
          seen[sources[i]] = true;
          checkThat(in[i] == numbers(1000 * sources[i], count), "wrong data");
        }
        for (int peer = 3; peer > 0; --peer) {
          check(moecclRecv(in[0].data(), count, moecclInt32, peer, 4, comm, nullptr), comm);
          checkThat(in[0] == numbers(1000 * peer, count), "wrong data of a known rank");
        }
      }
      check(moecclBarrier(comm, nullptr), comm);
    }
  });
}

TEST_P(Messages, BehindOneOfAnybody) {
  runJob(job(2), [](moecclComm_t comm, int rank) {
    if (rank == 1) {
      check(moecclBarrier(comm, nullptr), comm);
      for (const int value : {1, 2}) {
        check(moecclSend(&value, 1, moecclInt32, 0, 0, comm, nullptr), comm);
      }
      return;
    }
    moecclStream_t any, named;
    check(moecclStreamCreate(comm, &any));
    check(moecclStreamCreate(comm, &named));
    int first = 0, second = 0, source = -1;
    check(moecclRecvAny(&first, 1, moecclInt32, 0, &source, comm, any), comm);
    check(moecclRecv(&second, 1, moecclInt32, 1, 0, comm, named), comm);
    check(moecclBarrier(comm, nullptr), comm);
    check(moecclStreamDestroy(any));
    check(moecclStreamDestroy(named));
    checkThat(first == 1 && second == 2 && source == 1, "the later receive took the earlier one's");
  });
}

TEST_P(Messages, CollectivesOfAGroupRunAtOnce) {
  runJob(job(3), [](moecclComm_t comm, int rank) {
    for (int turn = 0; turn < 3; ++turn) {
      std::vector<std::vector<int>> sums(20, std::vector<int>(100, rank + turn));
      std::vector<int> all(3), from(1, rank);
      int token = rank;
      check(moecclGroupStart());
      for (std::vector<int>& sum : sums)
        check(moecclAllReduce(sum.data(), sum.data(), sum.size(), moecclInt32, moecclSum, comm,
                              nullptr),
              comm);
      check(moecclGroupStart());
      check(moecclAllGather(from.data(), all.data(), 1, moecclInt32, comm, nullptr), comm);
      check(moecclGroupEnd(), comm);
      checkThat(sums[0][0] == rank + turn, "an inner group ended the outer one");
      if (rank == 0) check(moecclSend(&token, 1, moecclInt32, 2, 0, comm, nullptr), comm);
      if (rank == 2) check(moecclRecv(&token, 1, moecclInt32, 0, 0, comm, nullptr), comm);
      check(moecclGroupEnd(), comm);
      for (const std::vector<int>& sum : sums)
        checkThat(sum == std::vector<int>(100, 3 + 3 * turn), "wrong sum");
      checkThat(all == numbers(0, 3) && (rank != 2 || token == 0), "wrong data");
    }
  });
}

TEST_P(Messages, OfAnotherSizeAreAnError) {
  runJob(job(2), [](moecclComm_t comm, int rank) {
    int values[2] = {};
    if (rank == 0) {
      moecclSend(values, 2, moecclInt32, 1, 0, comm, nullptr);
      checkError(moecclBarrier(comm, nullptr), moecclRemoteError, comm,
                 {"rank 0 sends 8 bytes where rank 1 expects 4"});
    } else {
      checkError(moecclRecv(values, 1, moecclInt32, 0, 0, comm, nullptr), moecclRemoteError, comm,
                 {"moecclRecv", "rank 0 sends 8 bytes where rank 1 expects 4"});
    }
    throw Aborts{};
  });
}

// What is left of a communicator is nothing to the next, which may have its number.
TEST_P(Messages, ThatNobodyHasReceivedGoWithTheirCommunicator) {
  runJob(job(3), [](moecclComm_t comm, int rank) {
    for (const int sent : {111, 222, 333}) {
      moecclComm_t part = nullptr;
      check(moecclCommSplit(comm, 0, rank, &part, nullptr), comm);
      int received = -1;
      if (rank == 0) check(moecclSend(&sent, 1, moecclInt32, 1, 5, part, nullptr), part);
      if (rank == 1 && sent == 333) {
        check(moecclRecv(&received, 1, moecclInt32, 0, 5, part, nullptr), part);
        checkThat(received == sent, "received " + std::to_string(received));
      }
      check(moecclBarrier(part, nullptr), part);
      check(moecclCommDestroy(part));
    }
  });
}

TEST_P(Messages, TimeoutOfOneCall) {
  runJob(job(2), [](moecclComm_t comm, int rank) {
    int value = 0;
    if (rank == 0) {
      check(moecclCommSetTimeout(comm, 300), comm);
      checkError(moecclRecv(&value, 1, moecclInt32, 1, 0, comm, nullptr), moecclTimeout, comm,
                 {"300 ms", "rank 1"});
    } else {
      const moecclResult_t result = moecclRecv(&value, 1, moecclInt32, 0, 9, comm, nullptr);
      checkError(result, moecclRemoteError, comm, {"rank 0 reports", "300 ms"});
    }
    throw Aborts{};
  });
}

void countCalls(void* context) { ++*static_cast<std::atomic<int>*>(context); }
void noteResult(moecclResult_t result, void* context) {
  *static_cast<std::atomic<int>*>(context) = result;
}

TEST_P(Messages, EventsAreOfPlacesInStreams) {
  runJob(job(2), [](moecclComm_t comm, int rank) {
    moecclStream_t stream, other;
    moecclEvent_t first, second;
    check(moecclStreamCreate(comm, &stream), comm);
    check(moecclStreamCreate(comm, &other), comm);
    check(moecclEventCreate(&first));
    check(moecclEventCreate(&second));
    check(moecclEventQuery(first));
    std::atomic<int> result = -1, late = -1;
    int one = rank, two = rank, three = 0;
    const int peer = 1 - rank;
    check(moecclBarrier(comm, nullptr), comm);
    check(moecclAllReduce(&one, &one, 1, moecclInt32, moecclSum, comm, stream), comm);
    check(moecclEventRecord(first, stream));
    check(moecclEventSetCallback(first, noteResult, &result));
    checkError(moecclEventSetCallback(first, noteResult, &result), moecclInvalidUsage, nullptr,
               {"callback already"});
    if (rank == 0) check(moecclRecv(&two, 1, moecclInt32, peer, 0, comm, stream), comm);
    check(moecclEventRecord(second, stream));
    check(moecclEventSynchronize(first));
    checkThat(one == 1, "the event came before its call");
    check(moecclStreamWaitEvent(other, second));
    check(moecclAllReduce(&two, &three, 1, moecclInt32, moecclMax, comm, other), comm);
    // Rank 1 sends when rank 0 has seen that the second event waits for that.
    int token = 41;
    if (rank == 0) {
      checkThat(moecclEventQuery(second) == moecclInProgress, "nothing was sent");
      check(moecclSend(&token, 1, moecclInt32, peer, 5, comm, nullptr), comm);
    } else {
      check(moecclRecv(&token, 1, moecclInt32, peer, 5, comm, nullptr), comm);
      check(moecclSend(&token, 1, moecclInt32, peer, 0, comm, stream), comm);
    }
    check(moecclStreamSynchronize(other));
    checkThat(three == 41, "the stream did not wait for the event");
    check(moecclEventQuery(second));
    check(moecclEventSetCallback(second, noteResult, &late));
    for (int i = 0; i < 5000 && result != moecclSuccess; ++i) std::this_thread::sleep_for(1ms);
    checkThat(result == moecclSuccess && late == moecclSuccess, "no callback");
    check(moecclEventDestroy(first));
    checkError(moecclEventQuery(first), moecclInvalidArgument, nullptr, {"event"});
    check(moecclEventDestroy(second));
    check(moecclStreamDestroy(stream));
    check(moecclStreamDestroy(other));
  });
}

TEST_P(Messages, EventsTellErrors) {
  runJob(job(2), [](moecclComm_t comm, int rank) {
    if (rank == 1) throw Aborts{};
    moecclStream_t stream;
    moecclEvent_t event;
    check(moecclStreamCreate(comm, &stream), comm);
    check(moecclEventCreate(&event));
    int value = 0;
    std::atomic<int> result = -1;
    if (moecclRecv(&value, 1, moecclInt32, 1, 0, comm, stream) == moecclSuccess) {
      check(moecclEventRecord(event, stream));
      const moecclResult_t set = moecclEventSetCallback(event, noteResult, &result);
      check(set);
      checkError(moecclEventSynchronize(event), moecclRemoteError, nullptr, {"rank 1"});
      for (int i = 0; i < 5000 && result == -1; ++i) std::this_thread::sleep_for(1ms);
      checkThat(result == moecclRemoteError, "the callback was told something else");
    }
    check(moecclCommAbort(comm));
    moecclStreamDestroy(stream);
    check(moecclEventDestroy(event));
    throw Aborted{};
  });
}

TEST_P(Messages, SubsetsNeedNothingOfOthers) {
  runJob(job(5), [](moecclComm_t comm, int rank) {
    // Rank 4 is in none and does nothing.
    for (int turn = 0; turn < 10 && rank != 4; ++turn) {
      const std::vector<int> members = turn % 3 == 0   ? std::vector<int>{2, 0, 3}
                                       : turn % 3 == 1 ? std::vector<int>{1, 3}
                                                       : std::vector<int>{0, 1, 2, 3};
      const auto at = std::find(members.begin(), members.end(), rank);
      if (at == members.end()) continue;
      moecclComm_t subset;
      check(moecclCommCreateSubset(comm, members.data(), static_cast<int>(members.size()), &subset,
                                   nullptr),
            comm);
      int own = -1, size = 0;
      check(moecclCommUserRank(subset, &own));
      check(moecclCommCount(subset, &size));
      checkThat(own == at - members.begin() && size == static_cast<int>(members.size()), "ranks");
      std::vector<int> all(members.size());
      check(moecclAllGather(&rank, all.data(), 1, moecclInt32, subset, nullptr), subset);
      checkThat(all == members, "wrong members");
      if (turn % 2 == 0)
        check(moecclCommDestroy(subset));
      else
        check(moecclCommRelease(subset));
    }
    check(moecclBarrier(comm, nullptr), comm);
  });
  awaitReleases(GetParam());
}

TEST_P(Messages, WrongArgumentsAreNamed) {
  runJob(job(2), [](moecclComm_t comm, int rank) {
    int value = 0, source = 0;
    const int wrong[] = {0, 0}, none[] = {1 - rank}, outside[] = {rank, 2};
    moecclComm_t subset;
    checkError(moecclSend(&value, 1, moecclInt32, 2, 0, comm, nullptr), moecclInvalidArgument, comm,
               {"moecclSend", "peer is 2", "0 to 1"});
    checkError(moecclRecv(&value, 1, moecclInt32, -1, 0, comm, nullptr), moecclInvalidArgument,
               comm, {"moecclRecv", "peer is -1"});
    checkError(moecclSend(nullptr, 1, moecclInt32, 0, 0, comm, nullptr), moecclInvalidArgument,
               comm, {"sendbuff is NULL"});
    checkError(moecclSend(&value, 1, moecclInt32, rank, 0, comm, nullptr), moecclInvalidArgument,
               comm, {"sends to itself"});
    checkError(moecclRecvAny(&value, 1, moecclInt32, 0, nullptr, comm, nullptr),
               moecclInvalidArgument, nullptr, {"source is NULL"});
    checkError(moecclRecvAny(&value, 1, moecclNumTypes, 0, &source, comm, nullptr),
               moecclInvalidArgument, comm, {"datatype is 14"});
    moecclComm_t alone = nullptr;
    check(moecclCommSplit(comm, rank, 0, &alone, nullptr), comm);
    checkError(moecclRecvAny(&value, 1, moecclInt32, 0, &source, alone, nullptr),
               moecclInvalidUsage, alone, {"comm has one rank"});
    check(moecclCommDestroy(alone));
    checkError(moecclGroupEnd(), moecclInvalidUsage, nullptr, {"moecclGroupStart"});
    checkError(moecclCommCreateSubset(comm, wrong, 2, &subset, nullptr), moecclInvalidArgument,
               comm, {"ranks[1] is 0", "twice"});
    checkError(moecclCommCreateSubset(comm, none, 1, &subset, nullptr), moecclInvalidArgument, comm,
               {"does not have rank " + std::to_string(rank)});
    checkError(moecclCommCreateSubset(comm, outside, 2, &subset, nullptr), moecclInvalidArgument,
               comm, {"ranks[1] is 2", "outside [0, 2)"});
    checkError(moecclStreamWaitEvent(nullptr, nullptr), moecclInvalidArgument, nullptr,
               {"stream is NULL"});
    check(moecclBarrier(comm, nullptr), comm);
  });
}

// Whoever has done its part may go at once; the others complete what it took part in.
TEST_P(Messages, ReleasedRanksAreNotWaitedForNorMissed) {
  for (int turn = 0; turn < 5; ++turn)
    runJob(job(4), [&](moecclComm_t comm, int rank) {
      std::vector<int> data(1000, rank);
      check(moecclBroadcast(data.data(), data.data(), data.size(), moecclInt32, 0, comm, nullptr),
            comm);
      if (rank == 0) {
        const auto begin = std::chrono::steady_clock::now();
        check(moecclCommRelease(comm));
        checkThat(std::chrono::steady_clock::now() - begin < 1s, "it waited");
        std::this_thread::sleep_for(200ms);
        if (GetParam().processes) std::exit(testing::Test::HasFailure() ? 1 : 0);
        throw Aborted{};
      }
      checkThat(data == std::vector<int>(1000, 0), "wrong data");
      // The others still work for a while.
      if (rank == 1) std::this_thread::sleep_for(100ms);
      int value = rank;
      if (rank == 1) check(moecclSend(&value, 1, moecclInt32, 2, 0, comm, nullptr), comm);
      if (rank == 2) check(moecclRecv(&value, 1, moecclInt32, 1, 0, comm, nullptr), comm);
      checkThat(rank != 2 || value == 1, "wrong message");
      check(moecclCommRelease(comm));
      // As programs end: what exit() calls tells the others.
      if (GetParam().processes) std::exit(testing::Test::HasFailure() ? 1 : 0);
      throw Aborted{};
    });
  awaitReleases(GetParam());
}

TEST_P(Messages, ReleaseRefusesWhatIsUnfinished) {
  runJob(job(2), [](moecclComm_t comm, int rank) {
    moecclStream_t stream;
    check(moecclStreamCreate(comm, &stream));
    int value = 0;
    if (rank == 0) {
      check(moecclRecv(&value, 1, moecclInt32, 1, 0, comm, stream), comm);
      checkError(moecclCommRelease(comm), moecclInvalidUsage, nullptr, {"unfinished"});
    }
    check(moecclBarrier(comm, nullptr), comm);
    if (rank == 1) check(moecclSend(&value, 1, moecclInt32, 0, 0, comm, stream), comm);
    check(moecclStreamDestroy(stream));
  });
}

INSTANTIATE_TEST_SUITE_P(Carriers, Messages, testing::ValuesIn(kCarriers),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Idle, IsCalledWhileACallWaits) {
  for (const int progressThread : {0, 1}) {
    Job job{.ranks = 2, .nodes = {}, .algorithms = {}};
    job.progressThread = progressThread;
    std::atomic<int> calls[2] = {};
    runParts(job, [&](Board& board, int rank) {
      moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
      config.idle = countCalls;
      config.idleContext = &calls[rank];
      moecclComm_t comm = join(job, board, rank, config);
      check(moecclBarrier(comm, nullptr), comm);
      // Rank 1 comes when rank 0's callback has run some more.
      const int before = calls[0];
      if (rank == 1)
        for (int i = 0; i < 10'000 && calls[0] < before + 20; ++i) std::this_thread::sleep_for(1ms);
      if (rank == 1) {
        EXPECT_GE(calls[0], before + 20);
      }
      check(moecclBarrier(comm, nullptr), comm);
      check(moecclCommDestroy(comm));
    });
  }
}

// What the callback of rank 0 needs.
struct Called {
  moecclComm_t comm = nullptr;
  std::atomic<bool> called = false, waited = false;
  std::atomic<bool>* othersOver = nullptr;
};

void awaitOthers(void* context) {
  auto& self = *static_cast<Called*>(context);
  if (self.comm == nullptr || self.called.exchange(true)) return;
  for (int i = 0; i < 10'000 && !*self.othersOver; ++i) std::this_thread::sleep_for(1ms);
  self.waited = self.othersOver->load();
  moecclCommRevoke(self.comm, "from idle");
}

TEST(Idle, HoldsNobodyUpAndMayRevoke) {
  for (const int progressThread : {0, 1}) {
    Job job{.ranks = 2, .nodes = {}, .algorithms = {}};
    job.progressThread = progressThread;
    std::atomic<bool> over = false, revoked = false;
    Called called[2];
    called[0].othersOver = &over;
    runParts(job, [&](Board& board, int rank) {
      moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
      config.idle = awaitOthers;
      config.idleContext = &called[rank];
      moecclComm_t comm = join(job, board, rank, config), beside = nullptr;
      check(moecclCommSplit(comm, 0, rank, &beside, nullptr), comm);
      // A call of another thread of rank 0 goes on while the callback runs.
      std::thread other([&, rank] {
        for (int i = 0; rank == 0 && i < 10'000 && !called[0].called; ++i)
          std::this_thread::sleep_for(1ms);
        check(moecclBarrier(beside, nullptr), beside);
        if (rank == 0) over = true;
      });
      if (rank == 0) {
        called[0].comm = comm;
        EXPECT_EQ(moecclBarrier(comm, nullptr), moecclRemoteError);
        EXPECT_NE(std::string(moecclGetLastError(comm)).find("from idle"), std::string::npos);
        revoked = true;
      }
      other.join();
      if (rank == 1) {
        while (!revoked) std::this_thread::sleep_for(1ms);
        EXPECT_EQ(moecclBarrier(comm, nullptr), moecclRemoteError);
      }
      moecclCommAbort(beside);
      moecclCommAbort(comm);
    });
    EXPECT_TRUE(called[0].waited);
  }
}

}  // namespace
}  // namespace moeccl::test
