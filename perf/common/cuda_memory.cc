// Keeps buffers on a GPU, which each rank takes by its number on the node, and copies them on a
// stream that waits for no others.
#include <cuda_runtime.h>

#include <cstdlib>
#include <stdexcept>

#include "perf/common/memory.h"

namespace moeccl::perf {
namespace {

void check(cudaError_t status, const std::string& call) {
  if (status != cudaSuccess)
    throw std::runtime_error("--memory cuda: " + call + ": " + cudaGetErrorString(status));
}

int numberOnNode() {
  for (const char* name :
       {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID", "MOECCL_RANK"})
    if (const char* number = std::getenv(name)) return std::atoi(number);
  return 0;
}

class CudaMemory final : public Memory {
 public:
  CudaMemory() {
    int devices = 0;
    check(cudaGetDeviceCount(&devices), "there is no usable CUDA driver");
    if (devices == 0) throw std::runtime_error("--memory cuda: the CUDA driver has no device");
    check(cudaSetDevice(numberOnNode() % devices), "cudaSetDevice");
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  ~CudaMemory() override { cudaStreamDestroy(stream_); }

  moecclMemory_t kind() const override { return moecclMemoryCuda; }
  std::string device() const override {
    int number = 0, driver = 0;
    cudaDeviceProp properties;
    check(cudaGetDevice(&number), "cudaGetDevice");
    check(cudaGetDeviceProperties(&properties, number), "cudaGetDeviceProperties");
    check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
    return std::string(properties.name) + ", CUDA driver " + std::to_string(driver / 1000) + "." +
           std::to_string(driver % 1000 / 10);
  }

  std::byte* allocate(std::size_t bytes) override {
    if (bytes == 0) return nullptr;
    void* memory = nullptr;
    check(cudaMalloc(&memory, bytes), "cudaMalloc of " + std::to_string(bytes) + " bytes");
    check(cudaMemset(memory, 0, bytes), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    return static_cast<std::byte*>(memory);
  }
  void free(std::byte* memory) noexcept override { cudaFree(memory); }
  void put(std::byte* to, const void* from, std::size_t bytes) override {
    copy(to, from, bytes, cudaMemcpyHostToDevice);
  }
  void get(void* to, const std::byte* from, std::size_t bytes) override {
    copy(to, from, bytes, cudaMemcpyDeviceToHost);
  }

  moecclStream_t stream() const override { return stream_; }
  void synchronize() override { check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  // On the stream, which does not wait for others.
  void copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    if (bytes == 0) return;
    check(cudaMemcpyAsync(to, from, bytes, kind, stream_), "cudaMemcpyAsync");
    synchronize();
  }

  cudaStream_t stream_ = nullptr;
};

}  // namespace

std::unique_ptr<Memory> openCudaMemory() { return std::make_unique<CudaMemory>(); }

}  // namespace moeccl::perf
