#include "src/exec/nccl_gpu.h"

#include <cuda_runtime.h>

#include <cstring>

#include "kernels/reduce.h"
#include "kernels/runtime_cuda.h"
#include "src/error.h"
#include "src/exec/nccl_library.h"
#include "src/text.h"

namespace moeccl {
namespace {

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // it has been told now
  throw Error(moecclUnhandledCudaError,
              stringf("%s: %s (%s)", call, cudaGetErrorString(status), cudaGetErrorName(status)));
}

cudaStream_t streamOf(Gpu::Stream stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t eventOf(Gpu::Event event) { return static_cast<cudaEvent_t>(event); }
ncclComm_t commOf(Gpu::Comm comm) { return static_cast<ncclComm_t>(comm); }

void requireDriver() {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status == cudaSuccess && devices > 0) return;
  cudaGetLastError();
  throw Error(moecclUnhandledCudaError,
              std::string("no usable CUDA driver: ") +
                  (status == cudaSuccess ? "it has no device" : cudaGetErrorString(status)));
}

class NcclGpu final : public Gpu {
 public:
  // First the driver: without one, whether there is an NCCL matters to nobody.
  NcclGpu() : nccl_((requireDriver(), NcclLibrary())) {}

  std::string name() const override {
    return stringf("NCCL %d.%d.%d", nccl_.version / 10000, nccl_.version / 100 % 100,
                   nccl_.version % 100);
  }

  int device() override {
    int device = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    return device;
  }
  void setDevice(int device) override { check(cudaSetDevice(device), "cudaSetDevice"); }

  std::byte* allocate(std::size_t bytes) override { return cuda::allocate(bytes); }
  void free(std::byte* memory) noexcept override { cuda::free(memory); }
  std::byte* allocatePinned(std::size_t bytes) override { return cuda::allocatePinned(bytes); }
  void freePinned(std::byte* memory) noexcept override { cuda::freePinned(memory); }

  Stream newStream(bool urgent) override { return cuda::newStream(urgent); }
  void deleteStream(Stream stream) noexcept override { cuda::deleteStream(stream); }
  Event newEvent() override { return cuda::newEvent(); }
  void deleteEvent(Event event) noexcept override { cuda::deleteEvent(event); }
  void record(Event event, Stream stream) override { cuda::record(event, stream); }
  void wait(Stream stream, Event event) override { cuda::wait(stream, event); }
  bool complete(Event event) override {
    const cudaError_t status = cudaEventQuery(eventOf(event));
    if (status == cudaErrorNotReady) {
      cudaGetLastError();
      return false;
    }
    check(status, "cudaEventQuery");
    return true;
  }
  std::uint64_t capture(Stream stream) override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long id = 0;
    check(cudaStreamGetCaptureInfo(streamOf(stream), &status, &id), "cudaStreamGetCaptureInfo");
    if (status == cudaStreamCaptureStatusInvalidated)
      throw Error(moecclUnhandledCudaError, "the stream's capture has failed already");
    return status == cudaStreamCaptureStatusActive ? id : 0;
  }

  void toDevice(std::byte* to, const void* from, std::size_t bytes, Stream stream) override {
    cuda::toDevice(to, from, bytes, stream);
  }
  void toHost(void* to, const std::byte* from, std::size_t bytes, Stream stream) override {
    cuda::toHost(to, from, bytes, stream);
  }
  void copyBlocks(std::span<const BlockCopy> copies, Stream stream) override {
    cuda::copyBlocks(copies, stream);
  }
  void reduce(moecclRedOp_t op, moecclDataType_t datatype, std::byte* dst,
              const std::byte* const* sources, std::size_t stride, std::size_t count,
              std::size_t bytes, Stream stream) override {
    cuda::reduce(op, datatype, dst, sources, stride, count, bytes, stream);
  }

  Id newId() override {
    ncclUniqueId made;
    check(nccl_.ncclGetUniqueId(&made), "ncclGetUniqueId", nullptr);
    Id id;
    static_assert(sizeof id == sizeof made);
    std::memcpy(id.data(), &made, sizeof made);
    return id;
  }
  Comm join(const Id& id, int ranks, int rank) override {
    ncclUniqueId theirs;
    std::memcpy(&theirs, id.data(), sizeof theirs);
    ncclComm_t comm = nullptr;
    check(nccl_.ncclCommInitRank(&comm, ranks, theirs, rank), "ncclCommInitRank", nullptr);
    return comm;
  }
  Comm split(Comm comm, int color, int key) override {
    // The parent may be the user's, and not blocking.
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    ncclComm_t part = nullptr;
    check(nccl_.ncclCommSplit(commOf(comm), color < 0 ? NCCL_SPLIT_NOCOLOR : color, key, &part,
                              &config),
          "ncclCommSplit", comm);
    return part;
  }
  void destroy(Comm comm) noexcept override { nccl_.ncclCommDestroy(commOf(comm)); }
  void abort(Comm comm) noexcept override { nccl_.ncclCommAbort(commOf(comm)); }
  int ranks(Comm comm) override {
    int ranks = 0;
    check(nccl_.ncclCommCount(commOf(comm), &ranks), "ncclCommCount", comm);
    return ranks;
  }
  int rank(Comm comm) override {
    int rank = 0;
    check(nccl_.ncclCommUserRank(commOf(comm), &rank), "ncclCommUserRank", comm);
    return rank;
  }
  int device(Comm comm) override {
    int device = 0;
    check(nccl_.ncclCommCuDevice(commOf(comm), &device), "ncclCommCuDevice", comm);
    return device;
  }
  moecclResult_t asyncError(Comm comm, std::string* text) override {
    ncclResult_t error = ncclSuccess;
    check(nccl_.ncclCommGetAsyncError(commOf(comm), &error), "ncclCommGetAsyncError", comm);
    if (error == ncclSuccess || error == ncclInProgress) return moecclSuccess;
    *text = describe(error, comm);
    return resultOf(error);
  }

  void groupStart() override { check(nccl_.ncclGroupStart(), "ncclGroupStart", nullptr); }
  void groupEnd() override { check(nccl_.ncclGroupEnd(), "ncclGroupEnd", nullptr); }
  void send(const std::byte* from, std::size_t bytes, int peer, Comm comm, Stream stream) override {
    check(nccl_.ncclSend(from, bytes, ncclUint8, peer, commOf(comm), streamOf(stream)), "ncclSend",
          comm);
  }
  void recv(std::byte* to, std::size_t bytes, int peer, Comm comm, Stream stream) override {
    check(nccl_.ncclRecv(to, bytes, ncclUint8, peer, commOf(comm), streamOf(stream)), "ncclRecv",
          comm);
  }

 private:
  // Codes up to ncclInProgress are ours too.
  static moecclResult_t resultOf(ncclResult_t result) {
    static_assert(static_cast<int>(ncclUnhandledCudaError) == moecclUnhandledCudaError &&
                  static_cast<int>(ncclSystemError) == moecclSystemError &&
                  static_cast<int>(ncclInternalError) == moecclInternalError &&
                  static_cast<int>(ncclInvalidArgument) == moecclInvalidArgument &&
                  static_cast<int>(ncclInvalidUsage) == moecclInvalidUsage &&
                  static_cast<int>(ncclRemoteError) == moecclRemoteError);
    return result <= ncclRemoteError ? static_cast<moecclResult_t>(result) : moecclInternalError;
  }
  std::string describe(ncclResult_t result, Comm comm) const {
    const char* const details = nccl_.ncclGetLastError(commOf(comm));
    return std::string(nccl_.ncclGetErrorString(result)) +
           (details == nullptr || *details == '\0' ? "" : std::string(": ") + details);
  }
  void check(ncclResult_t result, const char* call, Comm comm) const {
    if (result == ncclSuccess) return;
    throw Error(resultOf(result), std::string(call) + ": " + describe(result, comm));
  }
  static void check(cudaError_t status, const char* call) { moeccl::check(status, call); }

  const NcclLibrary nccl_;
};

}  // namespace

std::shared_ptr<Gpu> openNcclGpu() {
  // Never destroyed: threads may still use it while the process ends.
  static const auto* const kGpu = new std::shared_ptr<Gpu>(std::make_shared<NcclGpu>());
  return *kGpu;
}

}  // namespace moeccl
