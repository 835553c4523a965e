// The functions of the CUDA runtime, for kernels that the emulator runs.
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

using Work = std::function<void()>;

// The queue of the thread that calls, like everything here.
thread_local std::vector<Work> queue;
thread_local std::string broken;  // what a kernel did wrong; kept until somebody is told
thread_local cudaError_t last = cudaSuccess;
thread_local std::int64_t launched = 0;

cudaError_t said(cudaError_t status) {
  if (status != cudaSuccess) last = status;
  return status;
}

// Runs all that there is.
cudaError_t drain() {
  const std::vector<Work> all = std::exchange(queue, {});
  for (const Work& work : all) work();
  return said(broken.empty() ? cudaSuccess : cudaErrorLaunchFailure);
}

}  // namespace

struct EmulatedGraph {
  std::vector<Work> work;
};
struct EmulatedStream {
  bool capturing = false;
  EmulatedGraph captured = {};
};
struct EmulatedEvent {
  using Clock = std::chrono::steady_clock;
  std::shared_ptr<Clock::time_point> at = std::make_shared<Clock::time_point>();
};

namespace {

void enqueue(Work work, cudaStream_t stream) {
  if (stream != nullptr && stream->capturing)
    stream->captured.work.push_back(std::move(work));
  else
    queue.push_back(std::move(work));
}

}  // namespace

namespace moeccl::emulation {
namespace {

void tell(std::uintptr_t address, dim3 threads, std::size_t sharedBytes) {
  static const char* const path = std::getenv("EMULATED_LAUNCHES");
  if (path == nullptr) return;
  Dl_info program;
  std::FILE* const file = std::fopen(path, "a");
  if (file == nullptr) return;
  if (dladdr(reinterpret_cast<const void*>(address), &program) != 0)
    std::fprintf(
        file, "%s %#zx %u %zu %d\n", program.dli_fname,
        static_cast<std::size_t>(address - reinterpret_cast<std::uintptr_t>(program.dli_fbase)),
        threads.x * threads.y * threads.z, sharedBytes, busyWarps());
  std::fclose(file);
}

}  // namespace

std::int64_t launches() { return launched; }

void spoil(void* memory, std::size_t bytes, cudaStream_t stream) {
  enqueue([=] { std::memset(memory, 0xc3, bytes); }, stream);
}

cudaError_t launch(std::uintptr_t address, dim3 blocks, dim3 threads, std::size_t sharedBytes,
                   std::size_t parameterBytes, std::function<void()> kernel, cudaStream_t stream) {
  constexpr unsigned kMostThreads = 1024, kMostRows = 65535;
  constexpr std::size_t kMostShared = 48 << 10;  // without asking for more
  constexpr std::size_t kMostBytes = 4096;       // that all drivers take
  const auto within = [](dim3 all, unsigned x, unsigned y, unsigned z) {
    return all.x - 1 < x && all.y - 1 < y && all.z - 1 < z;  // none is 0
  };
  if (!within(blocks, 0x7fffffff, kMostRows, kMostRows) ||
      !within(threads, kMostThreads, kMostThreads, 64) ||
      threads.x * threads.y * threads.z > kMostThreads || parameterBytes > kMostBytes ||
      sharedBytes > kMostShared)
    return said(cudaErrorInvalidConfiguration);
  ++launched;
  enqueue(
      [=, kernel = std::move(kernel)] {
        if (broken.empty()) broken = run(blocks, threads, kernel, sharedBytes);
        tell(address, threads, sharedBytes);
      },
      stream);
  return cudaSuccess;
}

}  // namespace moeccl::emulation

const char* cudaGetErrorString(cudaError_t status) {
  switch (status) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidConfiguration:
      return "no such blocks, threads or parameters can be";
    case cudaErrorLaunchFailure:
      return broken.c_str();
    default:
      return "not what the emulation does";
  }
}
cudaError_t cudaGetLastError() {
  if (last == cudaErrorLaunchFailure) broken.clear();
  return std::exchange(last, cudaSuccess);
}
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidValue; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* device, int) {
  *device = {"this host"};
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return drain(); }

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  return posix_memalign(memory, 256, bytes) == 0 ? cudaSuccess : said(cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* memory) {
  const cudaError_t status = drain();
  std::free(memory);
  return status;
}
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) { return cudaMalloc(memory, bytes); }
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  ++launched;
  enqueue([=] { std::memset(to, value, bytes); }, stream);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  cudaMemsetAsync(to, value, bytes, nullptr);
  return drain();
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;    // wherever that is
  if (kind == cudaMemcpyHostToDevice) {  // whose memory may be used again at once
    const auto* const begin = static_cast<const std::byte*>(from);
    enqueue(
        [to, staged = std::vector<std::byte>(begin, begin + bytes)] {
          std::copy(staged.begin(), staged.end(), static_cast<std::byte*>(to));
        },
        stream);
  } else {
    enqueue([=] { std::memcpy(to, from, bytes); }, stream);
  }
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  return drain();
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = new EmulatedStream;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return cudaStreamCreate(stream);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return drain(); }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new EmulatedEvent;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return cudaEventCreate(event);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  enqueue([at = event->at] { *at = EmulatedEvent::Clock::now(); }, stream);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t) { return drain(); }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return drain(); }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  *milliseconds = std::chrono::duration<float, std::milli>(*end->at - *begin->at).count();
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const bool capturing = stream != nullptr && stream->capturing;
  *status = capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  stream->capturing = true;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  stream->capturing = false;
  *graph = new EmulatedGraph(std::exchange(stream->captured, {}));
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* runnable, cudaGraph_t graph, unsigned) {
  *runnable = new EmulatedGraph(*graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t runnable, cudaStream_t stream) {
  for (const Work& work : runnable->work) enqueue(work, stream);
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t runnable) {
  delete runnable;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
