// A real device by the CUDA runtime.
#include "tests/gpu/ranks/cuda_device.h"

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "src/exec/nccl_library.h"
#include "tests/api/results.h"

namespace moeccl::gpu {
namespace {

void cuda(cudaError_t status, const char* call) {
  if (status != cudaSuccess)
    throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(status));
}

class CudaDevice final : public test::Device {
 public:
  unsigned char* allocate(std::size_t bytes) override {
    void* memory = nullptr;
    if (bytes > 0) cuda(cudaMalloc(&memory, bytes), "cudaMalloc");
    return static_cast<unsigned char*>(memory);
  }
  void free(unsigned char* memory) noexcept override { cudaFree(memory); }
  // Copies of memory that is not pinned may return before they are complete on the device.
  void put(unsigned char* to, const void* from, std::size_t bytes) override {
    if (bytes == 0) return;
    cuda(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy to the device");
    synchronize(nullptr);
  }
  void get(void* to, const unsigned char* from, std::size_t bytes) override {
    if (bytes > 0)
      cuda(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy to the host");
  }

  moecclStream_t newStream() override {
    cudaStream_t stream = nullptr;
    cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return stream;
  }
  void deleteStream(moecclStream_t stream) noexcept override {
    cudaStreamDestroy(static_cast<cudaStream_t>(stream));
  }
  void synchronize(moecclStream_t stream) override {
    cuda(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "cudaStreamSynchronize");
  }

  double milliseconds(moecclStream_t stream, const std::function<void()>& work) override {
    const auto on = static_cast<cudaStream_t>(stream);
    cudaEvent_t begin = nullptr, end = nullptr;
    cuda(cudaEventCreate(&begin), "cudaEventCreate");
    cuda(cudaEventCreate(&end), "cudaEventCreate");
    cuda(cudaEventRecord(begin, on), "cudaEventRecord");
    work();
    cuda(cudaEventRecord(end, on), "cudaEventRecord");
    cuda(cudaEventSynchronize(end), "cudaEventSynchronize");
    float passed = 0;
    cuda(cudaEventElapsedTime(&passed, begin, end), "cudaEventElapsedTime");
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return passed;
  }

  // NCCL's own threads call CUDA meanwhile, which other modes would take amiss.
  void beginCapture(moecclStream_t stream) override {
    cuda(
        cudaStreamBeginCapture(static_cast<cudaStream_t>(stream), cudaStreamCaptureModeThreadLocal),
        "cudaStreamBeginCapture");
  }
  Graph endCapture(moecclStream_t stream) override {
    cudaGraph_t graph = nullptr;
    cuda(cudaStreamEndCapture(static_cast<cudaStream_t>(stream), &graph), "cudaStreamEndCapture");
    cudaGraphExec_t ready = nullptr;
    const cudaError_t status = cudaGraphInstantiate(&ready, graph, 0);
    cudaGraphDestroy(graph);
    cuda(status, "cudaGraphInstantiate");
    return {ready, [](void* exec) { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(exec)); }};
  }
  void replay(const Graph& graph, moecclStream_t stream) override {
    cuda(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph.get()),
                         static_cast<cudaStream_t>(stream)),
         "cudaGraphLaunch");
  }

  ncclComm* join(moecclComm_t comm) override {
    int rank = 0, ranks = 0;
    test::check(moecclCommUserRank(comm, &rank), comm);
    test::check(moecclCommCount(comm, &ranks), comm);
    ncclUniqueId id{};
    if (rank == 0) nccl(nccl_.ncclGetUniqueId(&id), "ncclGetUniqueId");
    id = fromRank0(id, ranks, comm);
    ncclComm_t made = nullptr;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    nccl(nccl_.ncclCommInitRankConfig(&made, ranks, id, rank, &config), "ncclCommInitRankConfig");
    return made;
  }
  void leave(ncclComm* comm) override { nccl(nccl_.ncclCommDestroy(comm), "ncclCommDestroy"); }

 private:
  ncclUniqueId fromRank0(const ncclUniqueId& id, int ranks, moecclComm_t comm) {
    unsigned char* const own = allocate(sizeof id);
    unsigned char* const all = allocate(sizeof id * static_cast<std::size_t>(ranks));
    put(own, &id, sizeof id);
    const moecclResult_t result =
        moecclAllGather(own, all, sizeof id, moecclUint8, comm, /*stream=*/nullptr);
    ncclUniqueId first = id;
    if (result == moecclSuccess) get(&first, all, sizeof first);
    free(own);
    free(all);
    test::check(result, comm);
    return first;
  }
  void nccl(ncclResult_t result, const char* call) const {
    if (result != ncclSuccess)
      throw std::runtime_error(std::string(call) + ": " + nccl_.ncclGetErrorString(result));
  }

  const NcclLibrary nccl_;
};

}  // namespace

int cudaDevices() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess ? devices : 0;
}

std::unique_ptr<test::Device> useCudaDevice(int number) {
  cuda(cudaSetDevice(number), "cudaSetDevice");
  return std::make_unique<CudaDevice>();
}

}  // namespace moeccl::gpu
