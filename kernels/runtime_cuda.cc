// Calls CUDA's runtime and throws its errors. Calls that CUDA would refuse while any stream is
// captured declare that they wait for no captured work.
#include "kernels/runtime_cuda.h"

#include <algorithm>

#include "kernels/launch_cuda.h"
#include "src/base/text.h"

namespace moeccl::cuda {
namespace {

cudaEvent_t eventOf(void* event) { return static_cast<cudaEvent_t>(event); }

// While a stream is captured in CUDA's global mode, CUDA refuses calls of any thread that may wait
// for the device. It allows them to a thread that has one of these, which says that it waits for no
// captured work.
class WhileCaptured {
 public:
  WhileCaptured() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  WhileCaptured(const WhileCaptured&) = delete;
  WhileCaptured& operator=(const WhileCaptured&) = delete;
  ~WhileCaptured() { cudaThreadExchangeStreamCaptureMode(&mode_); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace

int exchangeDevice(int device) {
  int before = 0;
  check(cudaGetDevice(&before), "cudaGetDevice");
  if (before != device) check(cudaSetDevice(device), "cudaSetDevice");
  return before;
}

std::byte* allocate(std::size_t bytes) {
  const WhileCaptured relaxed;
  void* memory = nullptr;
  check(cudaMalloc(&memory, std::max<std::size_t>(bytes, 1)),
        stringf("cudaMalloc of %zu bytes", bytes).c_str());
  return static_cast<std::byte*>(memory);
}
void free(void* memory) noexcept {
  const WhileCaptured relaxed;
  cudaFree(memory);
}

std::byte* allocatePinned(std::size_t bytes) {
  const WhileCaptured relaxed;
  void* memory = nullptr;
  check(cudaMallocHost(&memory, std::max<std::size_t>(bytes, 1)),
        stringf("cudaMallocHost of %zu bytes", bytes).c_str());
  return static_cast<std::byte*>(memory);
}
void freePinned(void* memory) noexcept {
  const WhileCaptured relaxed;
  cudaFreeHost(memory);
}

void* newStream(bool urgent) {
  const WhileCaptured relaxed;
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, urgent ? greatest : least),
        "cudaStreamCreateWithPriority");
  return stream;
}
void deleteStream(void* stream) noexcept { cudaStreamDestroy(streamOf(stream)); }
void synchronize(void* stream) {
  const WhileCaptured relaxed;
  check(cudaStreamSynchronize(streamOf(stream)), "cudaStreamSynchronize");
}
bool isCaptured(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t result = cudaStreamIsCapturing(streamOf(stream), &status);
  if (result == cudaErrorStreamCaptureImplicit) {
    cudaGetLastError();
    throw Error(moecclInvalidUsage, kLegacyStreamInCapture);
  }
  check(result, "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

void* newEvent() {
  const WhileCaptured relaxed;
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  return event;
}
void deleteEvent(void* event) noexcept { cudaEventDestroy(eventOf(event)); }
void record(void* event, void* stream) {
  check(cudaEventRecord(eventOf(event), streamOf(stream)), "cudaEventRecord");
}
void wait(void* stream, void* event) {
  check(cudaStreamWaitEvent(streamOf(stream), eventOf(event), 0), "cudaStreamWaitEvent");
}
bool complete(void* event) {
  const WhileCaptured relaxed;
  const cudaError_t status = cudaEventQuery(eventOf(event));
  if (status == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  check(status, "cudaEventQuery");
  return true;
}
void await(void* event) {
  const WhileCaptured relaxed;
  check(cudaEventSynchronize(eventOf(event)), "cudaEventSynchronize");
}

void clear(void* to, std::size_t bytes, void* stream) {
  check(cudaMemsetAsync(to, 0, bytes, streamOf(stream)), "cudaMemsetAsync");
}
void toDevice(void* to, const void* from, std::size_t bytes, void* stream) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, streamOf(stream)),
        "cudaMemcpyAsync to the device");
}
void toHost(void* to, const void* from, std::size_t bytes, void* stream) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, streamOf(stream)),
        "cudaMemcpyAsync to the host");
}

}  // namespace moeccl::cuda
