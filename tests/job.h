// Runs a function as every rank of a job: as threads of this process, or as processes of their own.
// Harnesses that give ranks a communicator, a transport or a watch rest on it.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <functional>
#include <new>
#include <thread>
#include <vector>

namespace moeccl::test {

// Memory that a process shares with those that it forks.
template <typename T>
class Shared {
 public:
  Shared() {
    void* const memory =
        mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    value_ = new (memory) T{};
  }
  ~Shared() { munmap(value_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  T& operator*() const { return *value_; }
  T* operator->() const { return value_; }

 private:
  T* value_;
};

// An exception that leaves the part of a rank fails the test.
inline void runPart(int rank, const std::function<void(int rank)>& part) {
  try {
    part(rank);
  } catch (const std::exception& error) {
    ADD_FAILURE() << "rank " << rank << ": " << error.what();
  }
}

inline void asThreads(int ranks, const std::function<void(int rank)>& part) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back([&, rank] { runPart(rank, part); });
  for (std::thread& thread : threads) thread.join();
}

// Calls `ended` once for each rank, in their order, with the status that waitpid() gives: 0 where
// the rank's part found no failure. A rank that hangs is killed, and fails the test.
inline void asProcesses(int ranks, const std::function<void(int rank)>& part,
                        const std::function<void(int rank, int status)>& ended,
                        std::chrono::seconds patience = std::chrono::minutes(10)) {
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      runPart(rank, part);
      std::fflush(nullptr);
      _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    children.push_back(child);
  }
  // One that ends stays a zombie while a lower one lives.
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = children[static_cast<std::size_t>(rank)];
    int status = 0;
    while (waitpid(child, &status, WNOHANG) == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (std::chrono::steady_clock::now() < deadline) continue;
      ADD_FAILURE() << "rank " << rank << " hangs";
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      break;
    }
    ended(rank, status);
  }
}

}  // namespace moeccl::test
