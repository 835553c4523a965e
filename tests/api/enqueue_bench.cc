// What a call on a GPU costs the host, by Google Benchmark: the CPU time of the thread that makes
// it, over a double of CUDA and NCCL whose calls do nothing. "calls" are those of CUDA and NCCL.
#include <benchmark/benchmark.h>

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

// A rank's communicator, of 4 on a node.
moecclComm_t join(const moecclUniqueId& id, int rank, const std::string& algorithm) {
  moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
  config.memory = moecclMemoryCuda;
  config.algorithms = algorithm.c_str();
  const std::string node = "node " + std::to_string(rank / 4);
  config.nodeId = node.c_str();
  moecclComm_t comm = nullptr;
  check(moecclCommInitRankConfig(&comm, kRanks, id, rank, &config));
  return comm;
}

// Rank 0's calls; the others only join.
void allToAll(benchmark::State& state, const std::string& algorithm, std::size_t block) {
  moecclUniqueId id;
  check(moecclGetUniqueId(&id));
  std::vector<std::thread> others;
  for (int rank = 1; rank < kRanks; ++rank)
    others.emplace_back([&, rank] {
      check(moecclCommDestroy(join(id, rank, algorithm)));
      mine.reset();
    });
  const moecclComm_t comm = join(id, 0, algorithm);
  std::vector<std::byte> in(block * kRanks), out(block * kRanks);
  const auto call = [&] {
    check(moecclAllToAll(in.data(), out.data(), block, moecclUint8, comm, nullptr), comm);
  };
  call();
  const std::int64_t before = mine->calls();
  for (auto _ : state) call();
  state.counters["calls"] =
      static_cast<double>(mine->calls() - before) / static_cast<double>(state.iterations());
  check(moecclCommDestroy(comm));
  mine.reset();
  for (std::thread& other : others) other.join();
}

void registerAll() {
  for (const std::string algorithm : {"chosen", "linear", "pairwise", "bruck", "hierarchical"})
    for (const std::size_t block : {std::size_t{1} << 10, std::size_t{1} << 16})
      benchmark::RegisterBenchmark(
          (algorithm + ", 2 x 4 ranks, " + std::to_string(block) + " B").c_str(), allToAll,
          algorithm == "chosen" ? "" : "alltoall=" + algorithm, block);
}

}  // namespace
}  // namespace moeccl

int main(int argc, char** argv) {
  moeccl::replaceGpu(&moeccl::openSilent);
  moeccl::registerAll();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
}
