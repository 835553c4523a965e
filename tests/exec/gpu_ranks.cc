// Opens doubles in place of GPUs, one for each thread.
#include "tests/exec/gpu_ranks.h"

#include <chrono>
#include <cstdio>

#include "tests/api/results.h"

namespace moeccl::test {
namespace {

GpuWorld* world = nullptr;
thread_local std::shared_ptr<GpuDouble> mine;

std::shared_ptr<Gpu> openDouble() {
  if (mine == nullptr) mine = world->newGpu();
  return mine;
}

class DoubleDevice final : public Device {
 public:
  unsigned char* allocate(std::size_t bytes) override {
    return reinterpret_cast<unsigned char*>(myGpu().allocate(bytes));
  }
  void free(unsigned char* memory) noexcept override {
    myGpu().free(reinterpret_cast<std::byte*>(memory));
  }
  void put(unsigned char* to, const void* from, std::size_t bytes) override {
    myGpu().toDevice(reinterpret_cast<std::byte*>(to), from, bytes, own_);
    synchronize(own_);
  }
  void get(void* to, const unsigned char* from, std::size_t bytes) override {
    myGpu().toHost(to, reinterpret_cast<const std::byte*>(from), bytes, own_);
    synchronize(own_);
  }
  moecclStream_t newStream() override { return myGpu().newStream(false); }
  void deleteStream(moecclStream_t stream) noexcept override { myGpu().deleteStream(stream); }
  void synchronize(moecclStream_t stream) override { myGpu().synchronize(stream); }
  double milliseconds(moecclStream_t stream, const std::function<void()>& work) override {
    const auto begin = std::chrono::steady_clock::now();
    work();
    synchronize(stream);
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
        .count();
  }
  void beginCapture(moecclStream_t stream) override { myGpu().beginCapture(stream); }
  Graph endCapture(moecclStream_t stream) override { return myGpu().endCapture(stream); }
  void replay(const Graph& graph, moecclStream_t stream) override {
    myGpu().replay(*std::static_pointer_cast<GpuDouble::Graph>(graph), stream);
  }
  ncclComm* join(moecclComm_t comm) override {
    int rank = 0, ranks = 0;
    check(moecclCommUserRank(comm, &rank), comm);
    check(moecclCommCount(comm, &ranks), comm);
    Gpu::Id id{};
    std::snprintf(id.data(), id.size(), "user's %d", joined_++);
    return static_cast<ncclComm*>(myGpu().join(id, ranks, rank, -1));
  }
  void leave(ncclComm* comm) override { myGpu().destroy(comm); }

 private:
  // A stream for copies alone, so that nothing is complete because of them that nobody has waited
  // for.
  const Gpu::Stream own_ = myGpu().newStream(false);
  int joined_ = 0;  // the same on all ranks
};

}  // namespace

GpusOfRanks::GpusOfRanks(GpuWorld& ofTheDay) {
  world = &ofTheDay;
  replaceGpu(&openDouble);
}

GpusOfRanks::~GpusOfRanks() { replaceGpu(nullptr); }

GpuDouble& myGpu() {
  openDouble();
  return *mine;
}

std::unique_ptr<Device> myDevice() { return std::make_unique<DoubleDevice>(); }

}  // namespace moeccl::test
