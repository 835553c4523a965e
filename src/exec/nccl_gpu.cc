// Calls CUDA and NCCL. It asks a communicator that does not block again and again until a call is
// complete, or patience ends.
#include "src/exec/nccl_gpu.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <utility>

#include "algorithms/plan.h"
#include "kernels/quantise.h"
#include "kernels/reduce.h"
#include "kernels/runtime_cuda.h"
#include "src/base/error.h"
#include "src/base/text.h"
#include "src/exec/nccl_library.h"
#include "src/exec/polling.h"

namespace moeccl {
namespace {

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // it has been told now
  throw Error(moecclUnhandledCudaError,
              stringf("%s: %s (%s)", call, cudaGetErrorString(status), cudaGetErrorName(status)));
}

cudaStream_t streamOf(Gpu::Stream stream) { return static_cast<cudaStream_t>(stream); }
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
  explicit NcclGpu(const NcclLibrary& nccl) : nccl_(nccl) {}

  std::string name() const override {
    return stringf("NCCL %d.%d.%d", nccl_.version / 10000, nccl_.version / 100 % 100,
                   nccl_.version % 100);
  }

  std::string model(int device) override {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
    return properties.name;
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

  std::byte* allocateForMessages(std::size_t bytes) override {
    if (!nccl_.registers()) return cuda::allocate(bytes);
    // This is allowed whatever streams are being captured.
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaThreadExchangeStreamCaptureMode(&mode);
    void* memory = nullptr;
    const ncclResult_t result = nccl_.ncclMemAlloc(&memory, std::max<std::size_t>(bytes, 1));
    cudaThreadExchangeStreamCaptureMode(&mode);
    check(result, "ncclMemAlloc", nullptr);
    return static_cast<std::byte*>(memory);
  }
  void freeForMessages(std::byte* memory) noexcept override {
    if (!nccl_.registers())
      cuda::free(memory);
    else if (memory != nullptr)
      nccl_.ncclMemFree(memory);
  }
  void* registerWith(Comm comm, std::byte* memory, std::size_t bytes) noexcept override {
    void* registration = nullptr;
    if (nccl_.registers() &&
        nccl_.ncclCommRegister(commOf(comm), memory, bytes, &registration) != ncclSuccess)
      return nullptr;
    return registration;
  }
  void deregister(Comm comm, void* registration) noexcept override {
    nccl_.ncclCommDeregister(commOf(comm), registration);
  }

  Stream newStream(bool urgent) override { return cuda::newStream(urgent); }
  void deleteStream(Stream stream) noexcept override { cuda::deleteStream(stream); }
  Event newEvent() override { return cuda::newEvent(); }
  void deleteEvent(Event event) noexcept override { cuda::deleteEvent(event); }
  void record(Event event, Stream stream) override { cuda::record(event, stream); }
  void wait(Stream stream, Event event) override { cuda::wait(stream, event); }
  bool complete(Event event) override { return cuda::complete(event); }
  std::uint64_t capture(Stream stream) override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long id = 0;
    const cudaError_t result = captureInfo(stream, &status, &id, nullptr);
    if (result == cudaErrorStreamCaptureImplicit) {
      cudaGetLastError();
      throw RefusedInCapture(moecclInvalidUsage, cuda::kLegacyStreamInCapture);
    }
    check(result, "cudaStreamGetCaptureInfo");
    if (status == cudaStreamCaptureStatusInvalidated)
      throw RefusedInCapture(moecclInvalidUsage,
                             "the stream's capture has failed already: end it, and capture again");
    return status == cudaStreamCaptureStatusActive ? id : 0;
  }
  void keepInGraph(Stream stream, std::shared_ptr<const void> what) override {
    using Kept = std::shared_ptr<const void>;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    unsigned long long id = 0;
    cudaGraph_t graph = nullptr;
    check(captureInfo(stream, &status, &id, &graph), "cudaStreamGetCaptureInfo");
    auto kept = std::make_unique<Kept>(std::move(what));
    cudaUserObject_t object = nullptr;
    check(cudaUserObjectCreate(
              &object, kept.get(),
              [](void* all) { const std::unique_ptr<Kept> ends(static_cast<Kept*>(all)); }, 1,
              cudaUserObjectNoDestructorSync),
          "cudaUserObjectCreate");
    kept.release();
    check(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove),
          "cudaGraphRetainUserObject");
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
  void divide(moecclDataType_t datatype, std::byte* data, std::size_t bytes, std::int64_t divisor,
              Stream stream) override {
    cuda::divide(datatype, data, bytes, divisor, stream);
  }
  void copyRows(const RowMatrices& matrices, const RowCopies& copies, Stream stream) override {
    cuda::copyRows(matrices, copies, stream);
  }
  void addRows(moecclDataType_t datatype, const RowMatrices& matrices, const RowSums& sums,
               const RowWeights& weights, Stream stream) override {
    cuda::addRows(datatype, matrices, sums, weights, stream);
  }
  void weighGradients(const WeighedRows& rows, float* ofWeights, Stream stream) override {
    cuda::weighGradients(rows, ofWeights, stream);
  }
  void clear(std::byte* to, std::size_t bytes, Stream stream) override {
    cuda::clear(to, bytes, stream);
  }
  void runLatency(LatencyStep step, const LatencyRows& rows, Stream stream) override {
    cuda::runLatency(step, rows, stream);
  }
  void quantise(moecclDataType_t to, moecclDataType_t from, const std::byte* rows,
                std::size_t rowCount, std::size_t elements, std::byte* quantised,
                Stream stream) override {
    cuda::quantise(to, from, rows, rowCount, elements, quantised, stream);
  }
  void dequantise(moecclDataType_t from, moecclDataType_t to, const std::byte* quantised,
                  std::size_t rowCount, std::size_t elements, std::byte* rows,
                  Stream stream) override {
    cuda::dequantise(from, to, quantised, rowCount, elements, rows, stream);
  }

  Id newId() override {
    ncclUniqueId made;
    check(nccl_.ncclGetUniqueId(&made), "ncclGetUniqueId", nullptr);
    Id id;
    static_assert(sizeof id == sizeof made);
    std::memcpy(id.data(), &made, sizeof made);
    return id;
  }
  Comm join(const Id& id, int ranks, int rank, const Patience& patience) override {
    ncclUniqueId theirs;
    std::memcpy(&theirs, id.data(), sizeof theirs);
    ncclConfig_t config = configFor(Purpose::parts);
    ncclComm_t comm = nullptr;
    const ncclResult_t result = nccl_.ncclCommInitRankConfig(&comm, ranks, theirs, rank, &config);
    try {
      await(result, "ncclCommInitRankConfig", comm, patience);
    } catch (...) {
      // Its threads end, and no rank is waited for any more.
      if (comm != nullptr) nccl_.ncclCommAbort(comm);
      throw;
    }
    return comm;
  }
  Comm split(Comm comm, int color, int key, Purpose purpose, const Patience& patience) override {
    ncclConfig_t config = configFor(purpose);
    // A thread of NCCL's stores through it once a parent that does not block is ready, be it after
    // the timeout.
    auto part = std::make_unique<std::atomic<ncclComm_t>>(nullptr);
    static_assert(sizeof *part == sizeof(ncclComm_t));
    const ncclResult_t result =
        nccl_.ncclCommSplit(commOf(comm), color < 0 ? NCCL_SPLIT_NOCOLOR : color, key,
                            reinterpret_cast<ncclComm_t*>(part.get()), &config);
    bool over = false;
    try {
      await(result, "ncclCommSplit", comm, patience, &over);
    } catch (...) {
      if (!over) part.release();
      throw;
    }
    return *part;
  }
  void settle(Comm comm, const Patience& patience) override {
    await(ncclInProgress, "ncclCommGetAsyncError", comm, patience);
  }
  void destroy(Comm comm) noexcept override { nccl_.ncclCommDestroy(commOf(comm)); }
  void abort(std::span<const Comm> comms) noexcept override {
    // In a group NCCL first tells the kernels of all to end, and only then waits for any.
    nccl_.ncclGroupStart();
    for (Comm comm : comms) nccl_.ncclCommAbort(commOf(comm));
    nccl_.ncclGroupEnd();
  }
  bool revokes() const override { return nccl_.ncclCommRevoke != nullptr; }
  void revoke(std::span<const Comm> comms) noexcept override {
    if (!revokes()) return;
    nccl_.ncclGroupStart();
    for (Comm comm : comms) nccl_.ncclCommRevoke(commOf(comm), 0);
    nccl_.ncclGroupEnd();
  }
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
  void groupEnd(Comm comm, const Patience& patience) override {
    await(nccl_.ncclGroupEnd(), "ncclGroupEnd", comm, patience);
  }
  void send(const std::byte* from, std::size_t bytes, int peer, Comm comm, Stream stream) override {
    checkInGroup(nccl_.ncclSend(from, bytes, ncclUint8, peer, commOf(comm), streamOf(stream)),
                 "ncclSend", comm);
  }
  void recv(std::byte* to, std::size_t bytes, int peer, Comm comm, Stream stream) override {
    checkInGroup(nccl_.ncclRecv(to, bytes, ncclUint8, peer, commOf(comm), streamOf(stream)),
                 "ncclRecv", comm);
  }

  bool has(Native what) const override {
    return what != Native::allToAll || nccl_.ncclAlltoAll != nullptr;
  }
  void run(Native what, const std::byte* from, std::byte* to, std::size_t count,
           moecclDataType_t datatype, moecclRedOp_t op, Comm comm, Stream stream,
           const Patience& patience) override {
    // The values that both have are the same.
    static_assert(static_cast<int>(ncclBfloat16) == moecclBfloat16 &&
                  static_cast<int>(ncclUint8) == moecclUint8 &&
                  static_cast<int>(ncclSum) == moecclSum);
    const auto type = static_cast<ncclDataType_t>(datatype);
    const auto sum = static_cast<ncclRedOp_t>(op);
    const ncclComm_t on = commOf(comm);
    const cudaStream_t in = streamOf(stream);
    const auto end = [&](ncclResult_t result, const char* call) {
      await(result, call, comm, patience);
    };
    switch (what) {
      case Native::allToAll:
        return end(nccl_.ncclAlltoAll(from, to, count, type, on, in), "ncclAlltoAll");
      case Native::allGather:
        return end(nccl_.ncclAllGather(from, to, count, type, on, in), "ncclAllGather");
      case Native::reduceScatter:
        return end(nccl_.ncclReduceScatter(from, to, count, type, sum, on, in),
                   "ncclReduceScatter");
      case Native::allReduce:
        return end(nccl_.ncclAllReduce(from, to, count, type, sum, on, in), "ncclAllReduce");
    }
  }

 private:
  // Codes up to ncclRemoteError are ours too.
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
  // A communicator that does not block may be at work on what the end of the group waits for.
  void checkInGroup(ncclResult_t result, const char* call, Comm comm) const {
    if (result != ncclInProgress) check(result, call, comm);
  }
  static void check(cudaError_t status, const char* call) { moeccl::check(status, call); }
  // Waits for the end of `call`, which has returned `result` on a communicator that need not block.
  // *over: whether NCCL has done with it, also where this throws.
  void await(ncclResult_t result, const char* call, Comm comm, const Patience& patience,
             bool* over = nullptr) const {
    for (Polling polling; result == ncclInProgress; polling.pause()) {
      check(nccl_.ncclCommGetAsyncError(commOf(comm), &result), call, comm);
      if (result != ncclInProgress) break;
      patience.check();
      if (polling.hasTaken(patience.timeoutMs))
        throw Error(moecclTimeout,
                    stringf("%s is not complete after %lld ms; not all ranks have come to it", call,
                            static_cast<long long>(patience.timeoutMs)));
    }
    if (over != nullptr) *over = true;
    check(result, call, comm);
  }
  // All lanes together leave half of the device to products of matrices, and all their kernels fit
  // at once, which nccl_run.h relies on. NCCL_MAX_CTAS overrides it.
  ncclConfig_t configFor(Purpose purpose) const {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = purpose == Purpose::messages && revokes();
    int device = 0, processors = 0;
    moeccl::check(cudaGetDevice(&device), "cudaGetDevice");
    moeccl::check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
                  "cudaDeviceGetAttribute");
    config.minCTAs = 1;
    config.maxCTAs = std::clamp(processors / (2 * kMaxLanes), 1, 32);
    return config;
  }
  static cudaError_t captureInfo(Stream stream, cudaStreamCaptureStatus* status,
                                 unsigned long long* id, cudaGraph_t* graph) {
#if CUDART_VERSION >= 13000
    return cudaStreamGetCaptureInfo(streamOf(stream), status, id, graph);
#else
    return cudaStreamGetCaptureInfo_v2(streamOf(stream), status, id, graph);
#endif
  }

  const NcclLibrary nccl_;
};

}  // namespace

std::shared_ptr<Gpu> makeNcclGpu(const NcclLibrary& nccl) {
  return std::make_shared<NcclGpu>(nccl);
}

std::shared_ptr<Gpu> openNcclGpu() {
  // Without a driver, whether there is an NCCL matters to nobody.
  const auto open = [] {
    requireDriver();
    return makeNcclGpu(openNccl());
  };
  // Never destroyed: threads may still use it while the process ends.
  static const auto* const kGpu = new std::shared_ptr<Gpu>(open());
  return *kGpu;
}

}  // namespace moeccl
