// More than 2^31 bytes in one call, and in one message. Wants about 10 GiB of memory and is skipped
// where there is less.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <stdexcept>

#include "tests/api/ranks.h"

namespace moeccl::test {
namespace {

constexpr size_t kOverInt = (size_t{1} << 31) + 4096 + 8;

// Memory that costs nothing until it is touched.
class Pages {
 public:
  explicit Pages(size_t bytes) : bytes_(bytes) {
    memory_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) throw std::runtime_error("no memory");
  }
  ~Pages() { munmap(memory_, bytes_); }
  uint64_t* words() { return static_cast<uint64_t*>(memory_); }

 private:
  size_t bytes_;
  void* memory_;
};

uint64_t wordOf(int from, int to, size_t at) {
  return at * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(from) * 1000003 +
         static_cast<uint64_t>(to);
}

void fill(uint64_t* words, size_t count, int from, int to) {
  for (size_t at = 0; at < count; ++at) words[at] = wordOf(from, to, at);
}

void expectWords(const uint64_t* words, size_t count, int from, int to) {
  for (size_t at = 0; at < count; ++at)
    if (words[at] != wordOf(from, to, at))
      throw std::runtime_error("word " + std::to_string(at) + " from rank " + std::to_string(from) +
                               " is wrong");
}

bool enoughMemory() {
  return static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) *
             static_cast<size_t>(sysconf(_SC_PAGESIZE)) >
         size_t{12} << 30;
}

class Large : public testing::TestWithParam<std::pair<bool, bool>> {};

TEST_P(Large, MessageInAllGather) {
  if (!enoughMemory()) GTEST_SKIP() << "less than 12 GiB of free memory";
  for (const char* algorithm : {"allgather=linear", "allgather=ring"}) {
    Job job{.ranks = 2, .nodes = {1, 1}, .algorithms = algorithm};
    job.processes = GetParam().first;
    job.ucx = GetParam().second;
    runJob(job, [&](moecclComm_t comm, int rank) {
      const size_t words = kOverInt / 8;
      Pages recv(2 * kOverInt);
      fill(recv.words() + rank * words, words, rank, 0);
      check(moecclAllGather(recv.words() + rank * words, recv.words(), kOverInt, moecclInt8, comm,
                            nullptr),
            comm);
      expectWords(recv.words(), words, 0, 0);
      expectWords(recv.words() + words, words, 1, 0);
    });
  }
}

TEST_P(Large, CallInAllToAll) {
  if (!enoughMemory()) GTEST_SKIP() << "less than 12 GiB of free memory";
  for (const char* algorithm : {"alltoall=linear", "alltoall=pairwise", "alltoall=hierarchical"}) {
    Job job{.ranks = 2, .nodes = {1, 1}, .algorithms = algorithm};
    job.processes = GetParam().first;
    job.ucx = GetParam().second;
    runJob(job, [&](moecclComm_t comm, int rank) {
      // Both blocks of a rank together exceed 2^31 bytes.
      const size_t words = kOverInt / 8 / 2 + 1, bytes = words * 8;
      Pages send(2 * bytes), recv(2 * bytes);
      for (int to = 0; to < 2; ++to) fill(send.words() + to * words, words, rank, to);
      check(moecclAllToAll(send.words(), recv.words(), words, moecclInt64, comm, nullptr), comm);
      for (int from = 0; from < 2; ++from)
        expectWords(recv.words() + from * words, words, from, rank);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, Large,
                         testing::Values(std::pair{false, false}, std::pair{true, true}),
                         [](const auto& info) { return info.param.second ? "ucx" : "loopback"; });

}  // namespace
}  // namespace moeccl::test
