// What the library asks of CUDA and NCCL in cases that no double of the whole can show:
// communicators that do not block, captures, and the order of calls.
#include "src/exec/nccl_gpu.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "kernels/runtime_cuda.h"
#include "src/base/error.h"
#include "src/exec/nccl_library.h"
#include "tests/exec/cuda_runtime_double.h"

namespace {

// Where NCCL will store a part, and whether that is freed before.
std::atomic<void*> storesTo = nullptr;
std::atomic<bool> freed = false;

}  // namespace

// Sanitizers do not see this test: they are built without CUDA's headers.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  if (memory != nullptr && memory == storesTo) freed = true;
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  operator delete(memory);
}

namespace moeccl::test {
namespace {

using namespace std::chrono_literals;

// A communicator that does not block: what it was asked for comes to pass behind its calls.
struct NcclDouble {
  std::vector<std::string> calls;
  std::atomic<ncclResult_t> state = ncclSuccess;
  std::chrono::milliseconds delay{0};
  ncclResult_t outcome = ncclSuccess;
  std::thread thread;
  int blocking = -1, mostBlocks = -1;  // of the last part

  ~NcclDouble() {
    if (thread.joinable()) thread.join();
  }
};
NcclDouble* nccl = nullptr;

const auto kParent = reinterpret_cast<ncclComm_t>(0x1000);
const auto kPart = reinterpret_cast<ncclComm_t>(0x2000);

ncclResult_t splitLater(ncclComm_t, int, int, ncclComm_t* part, ncclConfig_t* config) {
  nccl->blocking = config->blocking;
  nccl->mostBlocks = config->maxCTAs;
  nccl->state = ncclInProgress;
  storesTo = part;
  freed = false;
  nccl->thread = std::thread([part] {
    std::this_thread::sleep_for(nccl->delay);
    storesTo = nullptr;
    if (nccl->outcome == ncclSuccess && !freed) __atomic_store_n(part, kPart, __ATOMIC_RELEASE);
    nccl->state = nccl->outcome;
  });
  return ncclInProgress;
}

// The handle is there at once.
ncclResult_t joinLater(ncclComm_t* comm, int, ncclUniqueId, int, ncclConfig_t* config) {
  nccl->blocking = config->blocking;
  nccl->state = ncclInProgress;
  *comm = kPart;
  nccl->thread = std::thread([] {
    std::this_thread::sleep_for(nccl->delay);
    nccl->state = ncclSuccess;
  });
  return ncclInProgress;
}

void note(const char* what, std::size_t count, ncclDataType_t type, ncclRedOp_t op = ncclSum) {
  nccl->calls.push_back(std::string(what) + " " + std::to_string(count) + " of type " +
                        std::to_string(type) + " by " + std::to_string(op));
}

NcclLibrary library() {
  NcclLibrary made;
  made.version = NCCL_VERSION_CODE;
  made.ncclCommSplit = splitLater;
  made.ncclCommInitRankConfig = joinLater;
  made.ncclCommGetAsyncError = [](ncclComm_t, ncclResult_t* result) {
    *result = nccl->state;
    return ncclSuccess;
  };
  made.ncclGetErrorString = [](ncclResult_t result) -> const char* {
    return result == ncclSystemError ? "no way" : "another error";
  };
  made.ncclGetLastError = [](ncclComm_t) -> const char* { return ""; };
  made.ncclGroupStart = [] { return nccl->calls.emplace_back("start"), ncclSuccess; };
  made.ncclGroupEnd = [] { return nccl->calls.emplace_back("end"), ncclSuccess; };
  made.ncclCommAbort = [](ncclComm_t) { return nccl->calls.emplace_back("abort"), ncclSuccess; };
  made.ncclAllGather = [](const void*, void*, std::size_t count, ncclDataType_t type, ncclComm_t,
                          cudaStream_t) { return note("all-gather", count, type), ncclSuccess; };
  made.ncclReduceScatter = [](const void*, void*, std::size_t count, ncclDataType_t type,
                              ncclRedOp_t op, ncclComm_t, cudaStream_t) {
    return note("reduce-scatter", count, type, op), ncclSuccess;
  };
  made.ncclAllReduce = [](const void*, void*, std::size_t count, ncclDataType_t type,
                          ncclRedOp_t op, ncclComm_t, cudaStream_t) {
    return note("all-reduce", count, type, op), ncclSuccess;
  };
  return made;
}

class NcclGpu : public ::testing::Test {
 protected:
  NcclGpu() {
    nccl = &double_;
    cudaRuntime() = {};
  }

  NcclDouble double_;
  const std::shared_ptr<Gpu> gpu_ = makeNcclGpu(library());
};

TEST_F(NcclGpu, WaitsForPartsOfParentsThatDoNotBlock) {
  double_.delay = 30ms;
  EXPECT_EQ(gpu_->split(kParent, 0, 0, Gpu::Purpose::messages, 60000), kPart);
  // Four lanes leave half of the 108 processors.
  EXPECT_EQ(double_.mostBlocks, 13);
}

NcclLibrary libraryThatRevokes() {
  NcclLibrary made = library();
  made.ncclCommRevoke = [](ncclComm_t, int flags) {
    return nccl->calls.push_back("revoke " + std::to_string(flags)), ncclSuccess;
  };
  return made;
}

// A thread that is stuck in one that does can be freed by nothing else.
TEST_F(NcclGpu, HasMessagesBlockWhereNcclRevokes) {
  gpu_->split(kParent, 0, 0, Gpu::Purpose::messages, 60000);
  EXPECT_EQ(double_.blocking, 0);
  double_.thread.join();
  const std::shared_ptr<Gpu> newer = makeNcclGpu(libraryThatRevokes());
  newer->split(kParent, 0, 0, Gpu::Purpose::messages, 60000);
  EXPECT_EQ(double_.blocking, 1);
  double_.thread.join();
  newer->split(kParent, 0, 0, Gpu::Purpose::parts, 60000);
  EXPECT_EQ(double_.blocking, 0);
}

TEST_F(NcclGpu, RevokesCommunicatorsTogether) {
  const Gpu::Comm comms[] = {kParent, kPart};
  EXPECT_FALSE(gpu_->revokes());
  gpu_->revoke(comms);
  EXPECT_EQ(double_.calls, std::vector<std::string>());
  const std::shared_ptr<Gpu> newer = makeNcclGpu(libraryThatRevokes());
  EXPECT_TRUE(newer->revokes());
  newer->revoke(comms);
  EXPECT_EQ(double_.calls, (std::vector<std::string>{"start", "revoke 0", "revoke 0", "end"}));
}

// Other ranks are not waited for longer than the caller said.
TEST_F(NcclGpu, GivesUpJoining) {
  double_.delay = 300ms;
  try {
    gpu_->join({}, 2, 0, 20);
    FAIL() << "it was waited for";
  } catch (const Error& e) {
    EXPECT_EQ(e.result(), moecclTimeout);
  }
  EXPECT_EQ(double_.blocking, 0);
  EXPECT_EQ(double_.calls, (std::vector<std::string>{"abort"}));
}

TEST_F(NcclGpu, JoinsWithoutBlocking) {
  double_.delay = 10ms;
  EXPECT_EQ(gpu_->join({}, 2, 0, 60000), kPart);
  EXPECT_EQ(double_.blocking, 0);
}

TEST_F(NcclGpu, TellsWhyAPartIsNotMade) {
  double_.outcome = ncclSystemError;
  try {
    gpu_->split(kParent, 0, 0, Gpu::Purpose::parts, -1);
    FAIL() << "it was made";
  } catch (const Error& e) {
    EXPECT_EQ(e.result(), moecclSystemError);
    EXPECT_STREQ(e.what(), "ncclCommSplit: no way");
  }
}

// NCCL stores the part when nobody waits for it any more.
TEST_F(NcclGpu, GivesUpWaitingForAPart) {
  double_.delay = 300ms;
  try {
    gpu_->split(kParent, 0, 0, Gpu::Purpose::parts, 20);
    FAIL() << "it was waited for";
  } catch (const Error& e) {
    EXPECT_EQ(e.result(), moecclTimeout);
    EXPECT_STREQ(e.what(),
                 "ncclCommSplit is not complete after 20 ms; not all ranks have come to it");
  }
  double_.thread.join();
  EXPECT_FALSE(freed);
}

TEST_F(NcclGpu, WaitsUntilAUsersCommunicatorIsReady) {
  double_.state = ncclInProgress;
  double_.thread = std::thread([this] {
    std::this_thread::sleep_for(20ms);
    double_.state = ncclSuccess;
  });
  gpu_->settle(kParent, 60000);
  EXPECT_EQ(double_.state, ncclSuccess);
  double_.state = ncclInProgress;
  EXPECT_THROW(gpu_->settle(kParent, 5), Error);
}

TEST_F(NcclGpu, KnowsTheModelOfADevice) { EXPECT_EQ(gpu_->model(0), "NVIDIA A100"); }

TEST_F(NcclGpu, CallsFunctionsOfNccl) {
  const auto run = [&](Gpu& gpu, Gpu::Native what, std::size_t count, moecclDataType_t type,
                       moecclRedOp_t op) {
    gpu.run(what, nullptr, nullptr, count, type, op, kPart, nullptr, -1);
  };
  EXPECT_TRUE(gpu_->has(Gpu::Native::allReduce));
  run(*gpu_, Gpu::Native::allReduce, 1, moecclFloat32, moecclProd);
  run(*gpu_, Gpu::Native::reduceScatter, 2, moecclBfloat16, moecclSum);
  run(*gpu_, Gpu::Native::allGather, 3, moecclUint8, moecclSum);
  EXPECT_FALSE(gpu_->has(Gpu::Native::allToAll));
  NcclLibrary newer = library();
  newer.ncclAlltoAll = [](const void*, void*, std::size_t count, ncclDataType_t type, ncclComm_t,
                          cudaStream_t) { return note("all-to-all", count, type), ncclSuccess; };
  const std::shared_ptr<Gpu> gpu = makeNcclGpu(newer);
  EXPECT_TRUE(gpu->has(Gpu::Native::allToAll));
  run(*gpu, Gpu::Native::allToAll, 4, moecclUint8, moecclSum);
  EXPECT_EQ(double_.calls, (std::vector<std::string>{
                               "all-reduce 1 of type 7 by 1", "reduce-scatter 2 of type 9 by 0",
                               "all-gather 3 of type 1 by 0", "all-to-all 4 of type 1 by 0"}));
}

// As where NCCL_COMM_BLOCKING=0 makes all of them so: what a call asks for is done behind it.
TEST_F(NcclGpu, WaitsForGroupsOfCommunicatorsThatDoNotBlock) {
  NcclLibrary later = library();
  later.ncclSend = [](const void*, std::size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
    return ncclInProgress;
  };
  later.ncclGroupEnd = [] {
    nccl->state = ncclInProgress;
    if (nccl->thread.joinable()) nccl->thread.join();
    nccl->thread = std::thread([] {
      std::this_thread::sleep_for(nccl->delay);
      nccl->state = nccl->outcome;
    });
    return ncclInProgress;
  };
  later.ncclAllGather = [](const void*, void*, std::size_t, ncclDataType_t, ncclComm_t,
                           cudaStream_t) { return nccl->state = ncclInProgress, ncclInProgress; };
  const std::shared_ptr<Gpu> gpu = makeNcclGpu(later);
  const auto send = [&](std::int64_t timeoutMs) {
    gpu->groupStart();
    gpu->send(nullptr, 8, 1, kPart, nullptr);
    gpu->groupEnd(kPart, timeoutMs);
  };
  double_.delay = 30ms;
  send(60000);
  EXPECT_EQ(double_.state, ncclSuccess);
  const auto expectError = [](const auto& call, moecclResult_t result, const std::string& text) {
    try {
      call();
      FAIL() << "it went well";
    } catch (const Error& e) {
      EXPECT_EQ(e.result(), result);
      EXPECT_EQ(std::string(e.what()).substr(0, text.size()), text);
    }
  };
  double_.outcome = ncclSystemError;
  expectError([&] { send(-1); }, moecclSystemError, "ncclGroupEnd: no way");
  double_.delay = 300ms;
  expectError([&] { send(20); }, moecclTimeout, "ncclGroupEnd is not complete after 20 ms");
  expectError(
      [&] {
        gpu->run(Gpu::Native::allGather, nullptr, nullptr, 1, moecclUint8, moecclSum, kPart,
                 nullptr, 20);
      },
      moecclTimeout, "ncclAllGather is not complete after 20 ms");
}

TEST_F(NcclGpu, RegistersMemoryWhereNcclCan) {
  EXPECT_EQ(gpu_->registerWith(kPart, nullptr, 8), nullptr);
  NcclLibrary newer = library();
  newer.ncclMemAlloc = [](void** memory, std::size_t bytes) {
    // Whatever another thread captures.
    if (cudaMalloc(memory, bytes) != cudaSuccess) return ncclUnhandledCudaError;
    return nccl->calls.emplace_back("allocate"), ncclSuccess;
  };
  newer.ncclMemFree = [](void* memory) {
    return cudaFree(memory), nccl->calls.emplace_back("free"), ncclSuccess;
  };
  newer.ncclCommRegister = [](ncclComm_t, void* memory, std::size_t bytes, void** handle) {
    nccl->calls.push_back("register " + std::to_string(bytes));
    *handle = memory;
    return nccl->outcome;
  };
  newer.ncclCommDeregister = [](ncclComm_t, void*) {
    return nccl->calls.emplace_back("deregister"), ncclSuccess;
  };
  const std::shared_ptr<Gpu> gpu = makeNcclGpu(newer);
  cudaRuntime().capturedGlobally = true;
  std::byte* const memory = gpu->allocateForMessages(64);
  void* const handle = gpu->registerWith(kPart, memory, 64);
  EXPECT_EQ(handle, memory);
  gpu->deregister(kPart, handle);
  // What NCCL does not take it copies.
  double_.outcome = ncclSystemError;
  EXPECT_EQ(gpu->registerWith(kPart, memory, 64), nullptr);
  gpu->freeForMessages(memory);
  gpu->freeForMessages(nullptr);
  EXPECT_EQ(double_.calls, (std::vector<std::string>{"allocate", "register 64", "deregister",
                                                     "register 64", "free"}));
}

TEST_F(NcclGpu, AbortsCommunicatorsTogether) {
  const Gpu::Comm comms[] = {kParent, kPart};
  gpu_->abort(comms);
  EXPECT_EQ(double_.calls, (std::vector<std::string>{"start", "abort", "abort", "end"}));
}

TEST_F(NcclGpu, AsksForMemoryWhileAnotherThreadCaptures) {
  cudaRuntime().capturedGlobally = true;
  std::byte *memory = nullptr, *pinned = nullptr;
  EXPECT_NO_THROW(memory = gpu_->allocate(100));
  EXPECT_NO_THROW(pinned = gpu_->allocatePinned(100));
  EXPECT_NO_THROW(gpu_->newStream(false));
  EXPECT_NO_THROW(EXPECT_TRUE(gpu_->complete(gpu_->newEvent())));
  EXPECT_EQ(cudaRuntime().allocations, 2);
  gpu_->free(memory);
  gpu_->freePinned(pinned);
  EXPECT_EQ(cudaRuntime().allocations, 0);
  // The caller's own mode is as before.
  void* refused = nullptr;
  EXPECT_EQ(cudaMalloc(&refused, 1), cudaErrorStreamCaptureUnsupported);
}

TEST_F(NcclGpu, RefusesStreamsThatACaptureForbids) {
  EXPECT_EQ(gpu_->capture(nullptr), 0u);
  cudaRuntime().status = cudaStreamCaptureStatusActive;
  EXPECT_EQ(gpu_->capture(nullptr), 7u);
  cudaRuntime().status = cudaStreamCaptureStatusInvalidated;
  EXPECT_THROW(gpu_->capture(nullptr), RefusedInCapture);
  cudaRuntime().status = cudaStreamCaptureStatusNone;
  cudaRuntime().captureInfo = cudaErrorStreamCaptureImplicit;
  EXPECT_THROW(gpu_->capture(nullptr), RefusedInCapture);
  // Layers ask this.
  try {
    cuda::isCaptured(nullptr);
    FAIL() << "it is not refused";
  } catch (const Error& e) {
    EXPECT_EQ(e.result(), moecclInvalidUsage);
    EXPECT_NE(std::string(e.what()).find("pass another stream"), std::string::npos);
  }
}

TEST_F(NcclGpu, HasGraphsHoldWhatTheyNeed) {
  cudaRuntime().status = cudaStreamCaptureStatusActive;
  auto token = std::make_shared<const int>(1);
  gpu_->keepInGraph(nullptr, token);
  EXPECT_EQ(token.use_count(), 2);
  cudaRuntime().destroyGraph();
  EXPECT_EQ(token.use_count(), 1);
}

}  // namespace
}  // namespace moeccl::test
