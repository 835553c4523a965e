// Several threads of one rank: relatives used by different threads, subsets made by them, and an
// abort from outside a call that waits.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/api/ranks.h"

namespace moeccl::test {
namespace {

using Backend = std::pair<const char*, bool>;  // name, over UCX

class Threads : public testing::TestWithParam<Backend> {};

void exchangeMany(moecclComm_t comm, int calls, int salt) {
  int rank = 0, ranks = 0;
  check(moecclCommUserRank(comm, &rank), comm);
  check(moecclCommCount(comm, &ranks), comm);
  for (int call = 0; call < calls; ++call) {
    const size_t count = call % 7 * 300;
    std::vector<int> send(count * ranks), recv(count * ranks, -1);
    for (int to = 0; to < ranks; ++to)
      for (size_t i = 0; i < count; ++i)
        send[to * count + i] = salt + call * 10000 + rank * 100 + to;
    check(moecclAllToAll(send.data(), recv.data(), count, moecclInt32, comm, nullptr), comm);
    for (int from = 0; from < ranks; ++from)
      for (size_t i = 0; i < count; ++i)
        checkThat(recv[from * count + i] == salt + call * 10000 + from * 100 + rank,
                  "call " + std::to_string(call) + " of " + std::to_string(salt));
  }
}

// Runs function(0) to function(count - 1) at once, and throws what one of them has thrown.
void runAtOnce(int count, const std::function<void(int)>& function) {
  std::vector<std::thread> threads;
  std::vector<std::string> errors(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i)
    threads.emplace_back([&, i] {
      try {
        function(i);
      } catch (const std::exception& e) {
        errors[i] = e.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) checkThat(error.empty(), error);
}

TEST_P(Threads, RelativesInDifferentThreads) {
  for (bool progressThread : {false, true}) {
    Job job{.ranks = 4, .nodes = {2, 2}, .algorithms = "alltoall=hierarchical"};
    job.ucx = GetParam().second;
    job.progressThread = progressThread;
    runJob(job, [&](moecclComm_t comm, int rank) {
      std::vector<moecclComm_t> relatives(3);
      for (moecclComm_t& relative : relatives)
        check(moecclCommSplit(comm, 0, rank, &relative, nullptr), comm);
      runAtOnce(3, [&](int i) { exchangeMany(relatives[i], 40, i * 1000000); });
      for (moecclComm_t relative : relatives) check(moecclCommDestroy(relative));
    });
  }
}

// Communicators that are made at once by several threads must not be taken for one another.
TEST_P(Threads, SplitsInDifferentThreads) {
  Job job{.ranks = 3, .nodes = {}, .algorithms = {}};
  job.ucx = GetParam().second;
  runJob(job, [&](moecclComm_t comm, int rank) {
    std::vector<moecclComm_t> parents(3);
    for (moecclComm_t& parent : parents)
      check(moecclCommSplit(comm, 0, rank, &parent, nullptr), comm);
    runAtOnce(3, [&](int i) {
      for (int round = 0; round < 20; ++round) {
        moecclComm_t child = nullptr;
        check(moecclCommSplit(parents[i], 0, rank, &child, nullptr), parents[i]);
        exchangeMany(child, 5, (i * 20 + round) * 1000000);
        check(moecclCommDestroy(child));
      }
    });
    for (moecclComm_t parent : parents) check(moecclCommDestroy(parent));
  });
}

// Each rank's threads make subsets of one communicator, whose members meet in another order on each
// rank. Where one fails, each thread's own error says why.
TEST_P(Threads, SubsetsInDifferentThreads) {
  const std::vector<std::vector<int>> subsets = {{2, 1, 0}, {0, 1}, {1, 2}, {2, 0}};
  Job job{.ranks = 3, .nodes = {}, .algorithms = {}};
  job.ucx = GetParam().second;
  runJob(job, [&](moecclComm_t comm, int rank) {
    runAtOnce(4, [&](int i) {
      const std::vector<int>& members = subsets[i];
      const auto make = [&](int count, moecclComm_t* subset) {
        return moecclCommCreateSubset(comm, members.data(), count, subset, nullptr);
      };
      moecclComm_t subset = nullptr;
      for (int round = 0; round < 1000; ++round) {
        const moecclResult_t result = make(-1 - i, &subset);
        const std::string text = moecclGetLastError(nullptr);
        checkThat(result == moecclInvalidArgument &&
                      text.find("nRanks is " + std::to_string(-1 - i)) != std::string::npos,
                  text);
      }
      if (std::count(members.begin(), members.end(), rank) == 0) return;
      for (int round = 0; round < 20; ++round) {
        check(make(static_cast<int>(members.size()), &subset));
        std::vector<int> all(members.size());
        check(moecclAllGather(&rank, all.data(), 1, moecclInt32, subset, nullptr), subset);
        checkThat(all == members, "other members");
        check(moecclCommDestroy(subset));
      }
    });
  });
}

// What is left of a call that failed must not keep relatives from leaving in order: Destroy would
// return moecclTimeout. The messages are of a size that waits for its receive.
TEST_P(Threads, AbortOfASplitLeavesItsRelatives) {
  Job job{.ranks = 4, .nodes = {}, .algorithms = {}};
  job.ucx = GetParam().second;
  job.timeoutMs = 20000;
  runJob(job, [&](moecclComm_t comm, int rank) {
    moecclComm_t part = nullptr;
    check(moecclCommSplit(comm, 0, rank, &part, nullptr), comm);
    exchangeMany(part, 5, 0);
    exchangeMany(comm, 1, 0);  // until it is over for all
    constexpr size_t kCount = 5000;
    std::vector<int> in(kCount * 4), out(kCount * 4);
    if (rank == 1) {
      check(moecclCommAbort(part));
    } else {
      const moecclResult_t result =
          moecclAllToAll(in.data(), out.data(), kCount, moecclInt32, part, nullptr);
      checkError(result, moecclRemoteError, part, {"abort"});
      check(moecclCommDestroy(part));
    }
    exchangeMany(comm, 5, 1000000);
  });
}

TEST_P(Threads, DestroySaysThatNotAllCame) {
  Job job{.ranks = 2, .nodes = {}, .algorithms = {}};
  job.ucx = GetParam().second;
  job.timeoutMs = 300;
  std::atomic<bool> over = false;
  runJob(job, [&](moecclComm_t comm, int rank) {
    exchangeMany(comm, 1, 0);
    if (rank == 0) {
      const moecclResult_t result = moecclCommDestroy(comm);
      over = true;
      checkError(result, moecclTimeout, nullptr, {"moecclCommDestroy", "rank 0", "300 ms"});
      throw Aborted();
    }
    while (!over) std::this_thread::yield();
    throw Aborts();
  });
}

// Rank 1 never calls. Rank 0 waits in a call until another of its threads aborts.
TEST_P(Threads, AbortFromAnotherThread) {
  using Call = moecclResult_t (*)(moecclComm_t comm);
  const Call exchanges = [](moecclComm_t comm) {
    int in[2] = {}, out[2] = {};
    return moecclAllToAll(in, out, 1, moecclInt32, comm, nullptr);
  };
  const Call shrinks = [](moecclComm_t comm) {
    moecclComm_t smaller = nullptr;
    return moecclCommShrink(comm, nullptr, 0, &smaller, nullptr);
  };
  for (const Call call : {exchanges, shrinks})
    for (const bool progressThread : {false, true}) {
      Job job{.ranks = 2, .nodes = {}, .algorithms = {}};
      job.ucx = GetParam().second;
      job.progressThread = progressThread;
      runJob(job, [&](moecclComm_t comm, int rank) {
        if (rank == 1) {
          moecclResult_t state = moecclSuccess;
          while (state == moecclSuccess) check(moecclCommGetAsyncError(comm, &state), comm);
          checkThat(state == moecclRemoteError, "rank 1 did not hear of the abort");
          return;
        }
        std::thread aborter([&] {
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          moecclCommAbort(comm);
        });
        const moecclResult_t result = call(comm);
        const std::string text = moecclGetLastError(nullptr);
        aborter.join();
        checkThat(result == moecclRemoteError && text.find("aborted") != std::string::npos,
                  std::to_string(result) + ": " + text);
        throw Aborted();
      });
    }
}

INSTANTIATE_TEST_SUITE_P(Backends, Threads,
                         testing::Values(Backend{"loopback", false}, Backend{"ucx", true}),
                         [](const auto& info) { return std::string(info.param.first); });

}  // namespace
}  // namespace moeccl::test
