// What a call on a GPU costs the host: the CPU time of the thread that makes it, over a double of
// CUDA and NCCL whose calls do nothing.
//
//     enqueue_bench [CALLS]
//
// CALLS: to a batch, of which there are 101; 1000 unless given.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "src/exec/gpu.h"
#include "tests/api/results.h"

namespace moeccl {
namespace {

using test::check;

constexpr int kRanks = 8;

// Handles are numbers. Counts what would cost time: launches, events, messages.
class SilentGpu final : public Gpu {
 public:
  std::int64_t calls() const { return calls_; }

  std::string name() const override { return "no NCCL"; }
  std::string model(int) override { return "no GPU"; }
  int device() override { return 0; }
  void setDevice(int) override {}
  std::byte* allocate(std::size_t bytes) override { return new std::byte[bytes]; }
  void free(std::byte* memory) noexcept override { delete[] memory; }
  std::byte* allocatePinned(std::size_t bytes) override { return new std::byte[bytes]; }
  void freePinned(std::byte* memory) noexcept override { delete[] memory; }
  std::byte* allocateForMessages(std::size_t bytes) override { return allocate(bytes); }
  void freeForMessages(std::byte* memory) noexcept override { free(memory); }
  void* registerWith(Comm, std::byte*, std::size_t) noexcept override { return nullptr; }
  void deregister(Comm, void*) noexcept override {}
  Stream newStream(bool) override { return handle(); }
  void deleteStream(Stream) noexcept override {}
  Event newEvent() override { return handle(); }
  void deleteEvent(Event) noexcept override {}
  void record(Event, Stream) override { ++calls_; }
  void wait(Stream, Event) override { ++calls_; }
  bool complete(Event) override { return true; }
  std::uint64_t capture(Stream) override { return 0; }
  void keepInGraph(Stream, std::shared_ptr<const void>) override {}
  void toDevice(std::byte*, const void*, std::size_t, Stream) override { ++calls_; }
  void toHost(void*, const std::byte*, std::size_t, Stream) override { ++calls_; }
  void copyBlocks(std::span<const BlockCopy>, Stream) override { ++calls_; }
  void reduce(moecclRedOp_t, moecclDataType_t, std::byte*, const std::byte* const*, std::size_t,
              std::size_t, std::size_t, Stream) override {
    ++calls_;
  }
  void divide(moecclDataType_t, std::byte*, std::size_t, std::int64_t, Stream) override {
    ++calls_;
  }
  void copyRows(const RowMatrices&, const RowCopies&, Stream) override { ++calls_; }
  void addRows(moecclDataType_t, const RowMatrices&, const RowSums&, const RowWeights&,
               Stream) override {
    ++calls_;
  }
  void weighGradients(const WeighedRows&, float*, Stream) override { ++calls_; }
  void clear(std::byte*, std::size_t, Stream) override { ++calls_; }
  void runLatency(LatencyStep, const LatencyRows&, Stream) override { ++calls_; }
  void quantise(moecclDataType_t, moecclDataType_t, const std::byte*, std::size_t, std::size_t,
                std::byte*, Stream) override {
    ++calls_;
  }
  void dequantise(moecclDataType_t, moecclDataType_t, const std::byte*, std::size_t, std::size_t,
                  std::byte*, Stream) override {
    ++calls_;
  }
  Id newId() override { return {}; }
  Comm join(const Id&, int, int rank, const Patience&) override {
    rank_ = rank;
    return handle();
  }
  Comm split(Comm, int, int, Purpose, const Patience&) override { return handle(); }
  void settle(Comm, const Patience&) override {}
  void destroy(Comm) noexcept override {}
  void abort(std::span<const Comm>) noexcept override {}
  bool revokes() const override { return true; }
  void revoke(std::span<const Comm>) noexcept override {}
  int ranks(Comm) override { return kRanks; }
  int rank(Comm) override { return rank_; }
  int device(Comm) override { return 0; }
  moecclResult_t asyncError(Comm, std::string*) override { return moecclSuccess; }
  void groupStart() override { ++calls_; }
  void groupEnd(Comm, const Patience&) override { ++calls_; }
  void send(const std::byte*, std::size_t, int, Comm, Stream) override { ++calls_; }
  void recv(std::byte*, std::size_t, int, Comm, Stream) override { ++calls_; }
  bool has(Native) const override { return true; }
  void run(Native, const std::byte*, std::byte*, std::size_t, moecclDataType_t, moecclRedOp_t, Comm,
           Stream, const Patience&) override {
    ++calls_;
  }

 private:
  void* handle() { return reinterpret_cast<void*>(++handles_); }

  int rank_ = 0;
  std::uintptr_t handles_ = 0;
  std::int64_t calls_ = 0;
};

thread_local std::shared_ptr<SilentGpu> mine;
std::shared_ptr<Gpu> openSilent() {
  if (mine == nullptr) mine = std::make_shared<SilentGpu>();
  return mine;
}

double microsecondsOfThread() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

struct Cost {
  double microseconds = 0, calls = 0;  // of an enqueue
};

// Rank 0's, the median of the batches.
Cost costOf(const std::string& algorithm, std::size_t block, int calls) {
  constexpr int kBatches = 101;
  moecclUniqueId id;
  check(moecclGetUniqueId(&id));
  Cost cost;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank)
    ranks.emplace_back([&, rank] {
      moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
      config.memory = moecclMemoryCuda;
      config.algorithms = algorithm.c_str();
      const std::string node = "node " + std::to_string(rank / 4);
      config.nodeId = node.c_str();
      moecclComm_t comm = nullptr;
      check(moecclCommInitRankConfig(&comm, kRanks, id, rank, &config));
      std::vector<std::byte> in(block * kRanks), out(block * kRanks);
      const auto call = [&] {
        check(moecclAllToAll(in.data(), out.data(), block, moecclUint8, comm, nullptr), comm);
      };
      call();
      if (rank == 0) {
        const std::int64_t before = mine->calls();
        call();
        cost.calls = static_cast<double>(mine->calls() - before);
        std::vector<double> batches(kBatches);
        for (double& batch : batches) {
          const double begin = microsecondsOfThread();
          for (int i = 0; i < calls; ++i) call();
          batch = (microsecondsOfThread() - begin) / calls;
        }
        std::ranges::nth_element(batches, batches.begin() + kBatches / 2);
        cost.microseconds = batches[kBatches / 2];
      }
      check(moecclCommDestroy(comm));
      mine.reset();
    });
  for (std::thread& rank : ranks) rank.join();
  return cost;
}

void print(int calls) {
  std::printf("all-to-all of %d ranks on 2 nodes, a rank's thread\n%-14s%12s%14s%12s\n", kRanks,
              "algorithm", "block", "us per call", "CUDA, NCCL");
  for (const char* algorithm :
       {"", "alltoall=linear", "alltoall=pairwise", "alltoall=bruck", "alltoall=hierarchical"})
    for (const std::size_t block : {std::size_t{1} << 10, std::size_t{1} << 16}) {
      const Cost cost = costOf(algorithm, block, calls);
      const std::string name = *algorithm == '\0' ? "chosen" : algorithm + sizeof "alltoall";
      std::printf("%-14s%12zu%14.2f%12.0f\n", name.c_str(), block, cost.microseconds, cost.calls);
      std::fflush(stdout);
    }
}

}  // namespace
}  // namespace moeccl

int main(int argc, char** argv) {
  moeccl::replaceGpu(&moeccl::openSilent);
  moeccl::print(argc > 1 ? std::atoi(argv[1]) : 1000);
}
