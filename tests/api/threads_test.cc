// Several threads of one rank: relatives used by different threads, and an abort from outside a call
// that waits.
#include <gtest/gtest.h>

#include <chrono>
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

TEST_P(Threads, RelativesInDifferentThreads) {
  for (bool progressThread : {false, true}) {
    Job job{.ranks = 4, .nodes = {2, 2}, .algorithms = "alltoall=hierarchical"};
    job.ucx = GetParam().second;
    job.progressThread = progressThread;
    runJob(job, [&](moecclComm_t comm, int rank) {
      std::vector<moecclComm_t> relatives(3);
      for (moecclComm_t& relative : relatives)
        check(moecclCommSplit(comm, 0, rank, &relative, nullptr), comm);
      std::vector<std::thread> threads;
      std::vector<std::string> errors(relatives.size());
      for (size_t i = 0; i < relatives.size(); ++i)
        threads.emplace_back([&, i] {
          try {
            exchangeMany(relatives[i], 40, static_cast<int>(i) * 1000000);
          } catch (const std::exception& e) {
            errors[i] = e.what();
          }
        });
      for (std::thread& thread : threads) thread.join();
      for (const std::string& error : errors) checkThat(error.empty(), error);
      for (moecclComm_t relative : relatives) check(moecclCommDestroy(relative));
    });
  }
}

// Rank 1 never calls. Rank 0 waits in a call until another of its threads aborts.
TEST_P(Threads, AbortFromAnotherThread) {
  for (bool progressThread : {false, true}) {
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
      int in[2] = {}, out[2] = {};
      const moecclResult_t result = moecclAllToAll(in, out, 1, moecclInt32, comm, nullptr);
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
