// A rank that cannot go on with a communicator tells the others: their calls end with its number
// and text, relatives go on, and what follows is made by moecclCommShrink.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "moeccl/moe.h"
#include "moeccl/route.h"
#include "tests/api/ranks.h"
#include "tests/job.h"
#include "tests/sanitized.h"

namespace moeccl::test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// How long ranks wait for one that may have failed.
constexpr std::chrono::seconds kPatience(60);

// What ranks meet at apart from communicators, threads or processes.
class Meeting {
 public:
  explicit Meeting(int ranks) : ranks_(ranks) {}

  // Returns when all have come so often. A rank that has failed never comes.
  void meet() {
    const int all = (shared_->came++ / ranks_ + 1) * ranks_;
    const Clock::time_point end = Clock::now() + kPatience;
    while (shared_->came < all) {
      checkThat(Clock::now() < end, "a rank does not come to a meeting");
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
  std::atomic<int>& flag() { return shared_->flag; }

  // The longest time from a begin() of one rank to an end() of any.
  void begin() { shared_->begun = now(); }
  void end() {
    const std::int64_t passed = now() - shared_->begun;
    for (std::int64_t longest = shared_->longest;
         passed > longest && !shared_->longest.compare_exchange_weak(longest, passed);) {
    }
  }
  microseconds longest() const { return microseconds(shared_->longest); }

 private:
  struct State {
    std::atomic<int> came, flag;
    std::atomic<std::int64_t> begun, longest;
  };
  static std::int64_t now() {
    return std::chrono::duration_cast<microseconds>(Clock::now().time_since_epoch()).count();
  }
  const int ranks_;
  const Shared<State> shared_;
};

struct Backend {
  const char* name;
  bool processes, ucx, progressThread;
};

class Revoke : public testing::TestWithParam<Backend> {
 protected:
  static constexpr int kRanks = 4;

  static Job job(int ranks = kRanks) {
    Job job{.ranks = ranks, .nodes = {ranks / 2, ranks - ranks / 2}, .algorithms = {}};
    job.processes = GetParam().processes;
    job.ucx = GetParam().ucx;
    job.progressThread = GetParam().progressThread;
    return job;
  }
};

INSTANTIATE_TEST_SUITE_P(All, Revoke,
                         testing::Values(Backend{"loopback", false, false, false},
                                         Backend{"ucxThreads", false, true, false},
                                         Backend{"processes", true, false, false},
                                         Backend{"processesProgressThread", true, false, true}),
                         [](const auto& info) { return std::string(info.param.name); });

moecclResult_t gather(moecclComm_t comm, moecclStream_t stream = nullptr) {
  static thread_local std::vector<int> in(8), out(64);
  return moecclAllGather(in.data(), out.data(), 8, moecclInt32, comm, stream);
}

void expectRevoked(moecclComm_t comm, const std::string& text) {
  checkError(gather(comm), moecclRemoteError, comm, {text});
}

void expectWorks(moecclComm_t comm) {
  int ranks = 0, rank = 0;
  check(moecclCommCount(comm, &ranks), comm);
  check(moecclCommUserRank(comm, &rank), comm);
  const std::size_t count = 3000;
  std::vector<int> in(count * static_cast<std::size_t>(ranks)), out(in.size(), -1);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = rank * 1000 + static_cast<int>(i / count);
  check(moecclAllToAll(in.data(), out.data(), count, moecclInt32, comm, nullptr), comm);
  for (std::size_t i = 0; i < out.size(); ++i)
    checkThat(out[i] == static_cast<int>(i / count) * 1000 + rank, "wrong data");
  check(moecclAllReduce(in.data(), out.data(), 1, moecclInt32, moecclSum, comm, nullptr), comm);
  checkThat(out[0] == 1000 * ranks * (ranks - 1) / 2, "a wrong sum");
}

void awaitAsyncError(moecclComm_t comm, const std::string& text) {
  moecclResult_t result = moecclSuccess;
  for (const auto end = Clock::now() + std::chrono::seconds(20);
       result == moecclSuccess && Clock::now() < end;) {
    check(moecclCommGetAsyncError(comm, &result), comm);
    std::this_thread::sleep_for(milliseconds(1));
  }
  checkError(result, moecclRemoteError, comm, {text});
}

TEST_P(Revoke, IsToldToAllWhateverTheyDo) {
  Meeting meeting(kRanks);
  runJob(job(), [&](moecclComm_t comm, int rank) {
    const std::string text = "rank 2 revoked the communicator: no memory for step 7";
    expectWorks(comm);
    if (rank == 0) checkError(gather(comm), moecclRemoteError, comm, {"allgather", text});
    if (rank == 1) {
      moecclStream_t stream = nullptr;
      moecclEvent_t event = nullptr;
      check(moecclStreamCreate(comm, &stream), comm);
      check(moecclEventCreate(&event));
      check(gather(comm, stream), comm);
      check(moecclEventRecord(event, stream));
      checkError(moecclStreamSynchronize(stream), moecclRemoteError, nullptr, {text});
      checkError(moecclEventSynchronize(event), moecclRemoteError, nullptr, {text});
      checkError(moecclStreamDestroy(stream), moecclRemoteError, nullptr, {text});
      check(moecclEventDestroy(event));
    }
    if (rank == 2) {
      std::this_thread::sleep_for(milliseconds(100));
      check(moecclCommRevoke(comm, "no memory for step 7"));
      check(moecclCommRevoke(comm, "another reason"));
    }
    if (rank == 3) awaitAsyncError(comm, text);
    expectRevoked(comm, text);
    moecclComm_t part = nullptr;
    checkError(moecclCommSplit(comm, 0, 0, &part, nullptr), moecclRemoteError, comm, {text});
    int lost = 0;
    check(moecclCommGetFailedRanks(comm, nullptr, &lost), comm);
    checkThat(lost == 0, "ranks are lost");
    meeting.meet();
  });
}

// Another thread revokes, which the call does not wait for.
TEST_P(Revoke, EndsACallOfAnotherThread) {
  Meeting meeting(kRanks);
  runJob(job(), [&](moecclComm_t comm, int rank) {
    if (rank == 0) {
      std::thread revoking([&] {
        std::this_thread::sleep_for(milliseconds(100));
        check(moecclCommRevoke(comm, "stop"));
      });
      checkError(gather(comm), moecclRemoteError, comm, {"rank 0 revoked the communicator: stop"});
      revoking.join();
    }
    // Rank 1 has all that the others sent: its call would be complete before it hears of the
    // revoke.
    if (rank == 1) awaitAsyncError(comm, "rank 0 revoked the communicator: stop");
    if (rank > 1) checkError(gather(comm), moecclRemoteError, comm, {"rank 0 revoked", "stop"});
    meeting.meet();
    expectRevoked(comm, "rank 0 revoked the communicator: stop");
    meeting.meet();
  });
}

TEST_P(Revoke, ByTwoAtOnceIsByOneOfThem) {
  Meeting meeting(kRanks);
  runJob(job(), [&](moecclComm_t comm, int rank) {
    meeting.meet();
    if (rank % 2 == 1) check(moecclCommRevoke(comm, rank == 1 ? "first" : "third"));
    checkError(gather(comm), moecclRemoteError, comm, {"revoked the communicator: "});
    const std::string text = moecclGetLastError(comm);
    checkThat(text.find("rank 1 revoked the communicator: first") != std::string::npos ||
                  text.find("rank 3 revoked the communicator: third") != std::string::npos,
              text);
    expectRevoked(comm, text.substr(text.find("rank ")));
    meeting.meet();
  });
}

TEST_P(Revoke, LeavesRelativesAlone) {
  Meeting meeting(kRanks);
  runJob(job(), [&](moecclComm_t comm, int rank) {
    moecclComm_t half = nullptr, same = nullptr, quarter = nullptr;
    check(moecclCommSplit(comm, rank % 2, rank, &half, nullptr), comm);
    check(moecclCommSplit(comm, 0, -rank, &same, nullptr), comm);
    check(moecclCommSplit(half, 0, rank, &quarter, nullptr), half);
    meeting.meet();
    if (rank == 3) check(moecclCommRevoke(half, "of no use"));
    if (rank % 2 == 1)
      expectRevoked(half, "rank 1 revoked the communicator: of no use");
    else
      expectWorks(half);
    for (moecclComm_t each : {comm, same, quarter}) expectWorks(each);
    meeting.meet();
    // The whole, which all others were split from.
    if (rank == 0) check(moecclCommRevoke(comm, nullptr));
    expectRevoked(comm, "rank 0 revoked the communicator");
    for (moecclComm_t each : {same, quarter}) expectWorks(each);
    for (moecclComm_t each : {half, same, quarter}) check(moecclCommDestroy(each));
    meeting.meet();
  });
}

TEST_P(Revoke, EndsGridsRoutesAndLayers) {
  Meeting meeting(kRanks);
  runJob(job(), [&](moecclComm_t comm, int rank) {
    moecclComm_t other = nullptr;
    check(moecclCommSplit(comm, 0, rank, &other, nullptr), comm);
    moecclGrid_t grid = makeGrid(comm, {1, 2, 2, moecclOrderEspEp}),
                 flat = makeGrid(comm, {1, 4, 1, moecclOrderEspEp}), safe = nullptr;
    check(moecclGridCreate(other, {2, 2, 2, moecclOrderEspEp}, &safe), other);
    moecclRouteConfig_t routing = MOECCL_ROUTE_CONFIG_INITIALIZER;
    routing.experts = 8;
    routing.topK = 1;
    routing.hidden = 4;
    moecclRoute_t route = nullptr;
    check(moecclRouteCreate(flat, &routing, &route));
    const std::int32_t chosen = 6;
    const float weight = 1;
    moecclRouting_t one = MOECCL_ROUTING_INITIALIZER;
    one.tokens = 1;
    one.experts = &chosen;
    one.weights = &weight;
    moecclRoutePass_t open = nullptr;
    check(moecclRouteBegin(route, &one, nullptr, &open));
    moecclMoeConfig_t config = MOECCL_MOE_CONFIG_INITIALIZER;
    config.tokens = config.embedding = config.hidden = 4;
    config.experts = 8;
    config.topK = 1;
    config.capacityFactor = 1;
    moecclMoeLayer_t layer = nullptr;
    check(moecclMoeLayerCreate(flat, &config, &layer));
    const std::vector<float> zeros(1024);
    moecclMoeWeights_t weights = MOECCL_MOE_WEIGHTS_INITIALIZER;
    weights.gate = weights.w1 = weights.w2 = zeros.data();
    check(moecclMoeLayerSetWeights(layer, &weights));
    meeting.meet();
    if (rank == 1) check(moecclCommRevoke(comm, "bad data"));
    const std::string text = "rank 1 revoked the grid's communicator: bad data";
    for (const moecclGroup_t group : {moecclGroupMp, moecclGroupEp, moecclGroupEsp}) {
      moecclComm_t ranks = nullptr;
      check(moecclGridGetComm(grid, group, &ranks));
      awaitAsyncError(ranks, text);
      expectRevoked(ranks, text);
    }
    awaitAsyncError(comm, "rank 1 revoked the communicator: bad data");
    std::array<float, 64> in{}, out{};
    checkError(moecclDispatch(in.data(), out.data(), 1, 1, moecclFloat32, grid, nullptr),
               moecclRemoteError, nullptr, {"bad data"});
    moecclRoutePass_t pass = nullptr;
    checkError(moecclRouteBegin(route, &one, nullptr, &pass), moecclRemoteError, nullptr,
               {"bad data"});
    std::vector<float> more(1024);
    checkError(moecclPassDispatch(open, in.data(), more.data(), nullptr), moecclRemoteError,
               nullptr, {"bad data"});
    check(moecclPassEnd(open));
    moecclRoute_t late = nullptr;
    moecclMoeLayer_t another = nullptr;
    checkError(moecclRouteCreate(flat, &routing, &late), moecclRemoteError, nullptr, {"bad data"});
    checkError(moecclMoeLayerCreate(flat, &config, &another), moecclRemoteError, nullptr,
               {"bad data"});
    checkError(moecclMoeForward(layer, in.data(), out.data(), nullptr), moecclRemoteError, nullptr,
               {"bad data"});
    moecclComm_t ranks = nullptr;
    for (const moecclGroup_t group : {moecclGroupMp, moecclGroupEp, moecclGroupEsp}) {
      check(moecclGridGetComm(safe, group, &ranks));
      expectWorks(ranks);
    }
    expectWorks(other);
    meeting.meet();
    check(moecclMoeLayerDestroy(layer));
    check(moecclRouteDestroy(route));
    check(moecclGridDestroy(safe));
    check(moecclGridDestroy(flat));
    check(moecclGridDestroy(grid));
    check(moecclCommDestroy(other));
    meeting.meet();
  });
}

// Calls on several streams, in groups, messages that nobody sends: all end, and callbacks are told.
TEST_P(Revoke, EndsWhatIsInFlight) {
  Meeting meeting(kRanks);
  runJob(job(), [&](moecclComm_t comm, int rank) {
    constexpr std::size_t kCount = 1 << 20;
    std::vector<int> in(kCount), out(kCount * kRanks), other(kCount), another(kCount);
    std::array<moecclStream_t, 3> streams{};
    for (moecclStream_t& stream : streams) check(moecclStreamCreate(comm, &stream), comm);
    const bool calls = rank != 3;
    std::atomic<int> told = 0;
    moecclEvent_t event = nullptr;
    check(moecclEventCreate(&event));
    if (calls) {
      for (int i = 0; i < 20; ++i)
        check(moecclAllGather(in.data(), out.data(), kCount, moecclInt32, comm, streams[0]), comm);
      check(moecclEventRecord(event, streams[0]));
      check(moecclEventSetCallback(
          event,
          [](moecclResult_t result, void* count) {
            if (result == moecclRemoteError) ++*static_cast<std::atomic<int>*>(count);
          },
          &told));
      check(moecclGroupStart());
      const int to = (rank + 1) % 3, from = (rank + 2) % 3;
      check(moecclSend(in.data(), kCount, moecclInt32, to, 1, comm, streams[1]), comm);
      check(moecclRecv(other.data(), kCount, moecclInt32, from, 2, comm, streams[1]), comm);
      check(moecclSend(in.data(), kCount, moecclInt32, 3, 3, comm, streams[1]), comm);
      check(moecclGroupEnd());
      int source = -1;
      check(moecclRecvAny(another.data(), kCount, moecclInt32, 9, &source, comm, streams[2]), comm);
    }
    meeting.meet();
    const std::string text = "rank 3 revoked the communicator: enough";
    if (rank == 3) check(moecclCommRevoke(comm, "enough"));
    for (const moecclStream_t stream : streams) {
      if (calls)
        checkError(moecclStreamSynchronize(stream), moecclRemoteError, nullptr, {text});
      else
        check(moecclStreamSynchronize(stream));
      moecclStreamDestroy(stream);
    }
    if (calls) {
      checkError(moecclEventSynchronize(event), moecclRemoteError, nullptr, {text});
      while (told == 0) std::this_thread::yield();
      checkThat(told == 1, "the callback was called again");
    }
    check(moecclEventDestroy(event));
    expectRevoked(comm, text);
    meeting.meet();
  });
}

// Nobody waits for anybody.
TEST_P(Revoke, ThenDestroyAtOnce) {
  Meeting meeting(kRanks);
  runJob(job(), [&](moecclComm_t comm, int rank) {
    moecclComm_t part = nullptr;
    check(moecclCommSplit(comm, 0, rank, &part, nullptr), comm);
    meeting.meet();
    if (rank == 1) {
      check(moecclCommRevoke(part, "over"));
      check(moecclCommDestroy(part));
    } else {
      expectRevoked(part, "rank 1 revoked the communicator: over");
      check(rank == 0 ? moecclCommAbort(part) : moecclCommDestroy(part));
    }
    expectWorks(comm);
    meeting.meet();
    if (rank == 1) {
      check(moecclCommRevoke(comm, "all over"));
      check(moecclCommDestroy(comm));
      throw Aborted();
    }
    // It has left, too.
    checkError(gather(comm), moecclRemoteError, comm, {"rank 1"});
  });
}

TEST_P(Revoke, TextsAreCutBetweenCharacters) {
  struct Case {
    std::string given, told;
  };
  const std::string most(300, 'x');
  const std::vector<Case> cases = {
      {most, ": " + most},
      {most + "y", ": " + most},
      {most.substr(1) + "\xc3\xa4", ": " + most.substr(1)},
      {most.substr(2) + "\xc3\xa4z", ": " + most.substr(2) + "\xc3\xa4"},
      {std::string(100000, 'z'), ": " + std::string(300, 'z')},
      {"", "communicator"}};
  Meeting meeting(kRanks);
  runJob(job(), [&](moecclComm_t comm, int rank) {
    for (const Case& each : cases) {
      moecclComm_t part = nullptr;
      check(moecclCommSplit(comm, 0, rank, &part, nullptr), comm);
      if (rank == 2) check(moecclCommRevoke(part, each.given.c_str()));
      checkError(gather(part), moecclRemoteError, part, {"rank 2 revoked the communicator"});
      const std::string text = moecclGetLastError(part);
      checkThat(text.ends_with(each.told), text);
      check(moecclCommDestroy(part));
    }
    meeting.meet();
  });
}

TEST(RevokeArguments, AreChecked) {
  runJob({.ranks = 1, .nodes = {}, .algorithms = {}}, [](moecclComm_t comm, int) {
    checkError(moecclCommRevoke(nullptr, "x"), moecclInvalidArgument, nullptr,
               {"moecclCommRevoke", "comm is NULL"});
    moecclComm_t part = nullptr;
    check(moecclCommSplit(comm, 0, 0, &part, nullptr), comm);
    check(moecclCommDestroy(part));
    checkError(moecclCommRevoke(part, "x"), moecclInvalidArgument, nullptr, {"moecclCommRevoke"});
  });
}

// One rank has calls under way with the others and computes, without a thread for progress. Their
// calls end before it comes back, and it has lost nobody then, nor have they lost it.
TEST_P(Revoke, WaitsForNobodyWhoComputes) {
  if (GetParam().progressThread) GTEST_SKIP() << "it would not be late";
  for (const std::size_t count : {std::size_t{1}, std::size_t{1} << 20}) {
    Meeting meeting(kRanks), others(kRanks - 1);
    std::atomic<int>& late = meeting.flag();
    runJob(job(), [&](moecclComm_t comm, int rank) {
      moecclComm_t part = nullptr;
      moecclStream_t stream = nullptr;
      check(moecclCommSplit(comm, 0, rank, &part, nullptr), comm);
      check(moecclStreamCreate(part, &stream), part);
      expectWorks(part);
      meeting.meet();
      const std::string text = "rank 1 revoked the communicator: too late";
      std::vector<int> in(kRanks * count, rank), out(in.size());
      if (rank == 3) {
        check(moecclAllToAll(in.data(), out.data(), count, moecclInt32, part, stream), part);
        // It computes, and calls nothing.
        for (const Clock::time_point end = Clock::now() + kPatience; late == 0;)
          checkThat(Clock::now() < end, "no rank has let it go on");
        // Where it came last, its call may have ended before the others revoked.
        moecclResult_t result = moecclStreamSynchronize(stream);
        if (result == moecclSuccess)
          result = moecclAllToAll(in.data(), out.data(), count, moecclInt32, part, stream);
        checkError(result, moecclRemoteError, nullptr, {text});
      } else {
        // A second call can never end, as rank 3 does not make it.
        for (int i = 0; i < 2; ++i)
          check(moecclAllToAll(in.data(), out.data(), count, moecclInt32, part, stream), part);
        others.meet();
        std::this_thread::sleep_for(milliseconds(200));
        if (rank == 1) check(moecclCommRevoke(part, "too late"));
        checkError(moecclStreamSynchronize(stream), moecclRemoteError, nullptr, {text});
        std::ranges::fill(in, -1);
        others.meet();
        // Longer than anybody waits for a peer before its connection is closed.
        std::this_thread::sleep_for(milliseconds(2500));
        late = 1;
      }
      moecclStreamDestroy(stream);
      expectWorks(comm);
      int lost = 0;
      check(moecclCommGetFailedRanks(comm, nullptr, &lost), comm);
      checkThat(lost == 0, "ranks are lost");
      check(moecclCommDestroy(part));
      expectWorks(comm);
      meeting.meet();
    });
  }
}

// Arguments that are wrong on one rank: the others, who are in the same call, are told by it.
class SetUp : public Revoke {};

INSTANTIATE_TEST_SUITE_P(All, SetUp,
                         testing::Values(Backend{"loopback", false, false, false},
                                         Backend{"processes", true, false, false}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(SetUp, ErrorsOfOneRankAreToldToAll) {
  Meeting meeting(kRanks);
  runJob(job(), [&](moecclComm_t comm, int rank) {
    const bool wrong = rank == 2;
    const auto expect = [&](moecclResult_t result, const char* text) {
      checkError(result, wrong ? moecclInvalidArgument : moecclRemoteError, comm, {text});
      if (!wrong) checkError(result, moecclRemoteError, comm, {"rank 2"});
    };
    moecclComm_t part = nullptr;
    moecclGrid_t grid = nullptr;
    expect(moecclCommSplit(comm, wrong ? -7 : 0, 0, &part, nullptr), "color is -7");
    expect(moecclCommSplit(comm, 0, 0, wrong ? nullptr : &part, nullptr), "newComm is NULL");
    const moecclConfig_t bad{};
    expect(moecclCommSplit(comm, 0, 0, &part, wrong ? &bad : nullptr), "MOECCL_CONFIG_INITIALIZER");
    expect(moecclGridCreate(comm, {1, kRanks, 1, moecclOrderEspEp}, wrong ? nullptr : &grid),
           "grid is NULL");
    const int out = 9;
    const moecclResult_t shrunk = moecclCommShrink(comm, &out, wrong ? 1 : 0, &part, nullptr);
    checkError(shrunk, wrong ? moecclInvalidArgument : moecclRemoteError, comm,
               {wrong ? "exclude[0] is 9" : "rank 2 could not make the communicator"});
    expectWorks(comm);
    meeting.meet();
  });
}

// After one revocation the next communicator is made of all ranks, and so on.
int openFiles() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<int>(std::distance(begin(all), end(all)));
}

long residentKib() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (word == "VmRSS:") {
      long kib = 0;
      status >> kib;
      return kib;
    }
  return 0;
}

// Ranks in nodes of their own have nothing between them but TCP.
struct Rounds : Revoke {
  static Job job() {
    Job job = Revoke::job();
    if (std::string(GetParam().name) == "processesTcp") job.nodes = std::vector<int>(kRanks, 1);
    return job;
  }
};

INSTANTIATE_TEST_SUITE_P(All, Rounds,
                         testing::Values(Backend{"loopback", false, false, false},
                                         Backend{"ucxThreads", false, true, false},
                                         Backend{"processes", true, false, false},
                                         Backend{"processesTcp", true, false, false},
                                         Backend{"processesProgressThread", true, false, true}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(Rounds, OfRevokeAndShrink) {
  const int rounds = 50, settled = 10;
  Meeting meeting(kRanks);
  runJob(job(), [&](moecclComm_t given, int rank) {
    moecclComm_t comm = given;
    int files = 0;
    long kib = 0;
    for (int round = 0; round < rounds; ++round) {
      expectWorks(comm);
      meeting.meet();
      if (rank == round % kRanks) {
        meeting.begin();
        check(moecclCommRevoke(comm, ("round " + std::to_string(round)).c_str()));
      }
      expectRevoked(comm, "rank " + std::to_string(round % kRanks) +
                              " revoked the communicator: round " + std::to_string(round));
      meeting.end();
      moecclComm_t next = nullptr;
      check(moecclCommShrink(comm, nullptr, 0, &next, nullptr), comm);
      if (comm != given) check(moecclCommDestroy(comm));
      comm = next;
      // Threads have them in common: all of them are at the same place.
      if (!GetParam().processes) meeting.meet();
      if (round == settled) files = openFiles(), kib = residentKib();
      if (round < rounds - 1) continue;
      // Fewer than one in a round: ranks that dial each other at once close one connection later.
      checkThat(openFiles() < files + rounds - settled - 1, "descriptors grow");
      if (!kSanitized) checkThat(residentKib() < kib + 4 * 1024, "memory grows");
    }
    if (!GetParam().processes) meeting.meet();
    expectWorks(comm);
    check(moecclCommDestroy(comm));
    meeting.meet();
  });
  std::cout << "all ranks had the text after " << meeting.longest().count() << " us at most\n";
}

// What had been sent is taken by nobody, though it has the tag of what follows.
TEST_P(Revoke, LeavesNoMessageToOthers) {
  const int rounds = 20, messages = 200;
  Meeting meeting(kRanks);
  runJob(job(), [&](moecclComm_t comm, int rank) {
    const int to = rank ^ 1;
    std::vector<char> data(4000, 'x'), got(data.size());
    moecclStream_t stream = nullptr;
    for (int round = 0; round < rounds; ++round) {
      moecclComm_t part = nullptr;
      check(moecclCommSplit(comm, 0, rank, &part, nullptr), comm);
      check(moecclStreamCreate(part, &stream), part);
      for (int i = 0; i < messages; ++i)
        moecclSend(data.data(), data.size(), moecclInt8, to, 5, part, stream);
      if (rank == 2) check(moecclCommRevoke(part, "again"));
      awaitAsyncError(part, "again");
      moecclStreamDestroy(stream);
      check(moecclCommDestroy(part));
      // Messages of the same tag.
      check(moecclGroupStart());
      std::vector<char> other(data.size(), 'o');
      check(moecclSend(other.data(), other.size(), moecclInt8, to, 5, comm, nullptr), comm);
      check(moecclRecv(got.data(), got.size(), moecclInt8, to, 5, comm, nullptr), comm);
      check(moecclGroupEnd());
      checkThat(got == other, "a message of the old communicator came");
    }
    meeting.meet();
  });
}

}  // namespace
}  // namespace moeccl::test
