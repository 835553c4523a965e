#include "kernels/runtime_cuda.h"

#include <algorithm>

#include "kernels/launch_cuda.h"
#include "src/text.h"

namespace moeccl::cuda {
namespace {

cudaEvent_t eventOf(void* event) { return static_cast<cudaEvent_t>(event); }

}  // namespace

std::byte* allocate(std::size_t bytes) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, std::max<std::size_t>(bytes, 1)),
        stringf("cudaMalloc of %zu bytes", bytes).c_str());
  return static_cast<std::byte*>(memory);
}
void free(void* memory) noexcept { cudaFree(memory); }

std::byte* allocatePinned(std::size_t bytes) {
  void* memory = nullptr;
  check(cudaMallocHost(&memory, std::max<std::size_t>(bytes, 1)),
        stringf("cudaMallocHost of %zu bytes", bytes).c_str());
  return static_cast<std::byte*>(memory);
}
void freePinned(void* memory) noexcept { cudaFreeHost(memory); }

void* newStream(bool urgent) {
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, urgent ? greatest : least),
        "cudaStreamCreateWithPriority");
  return stream;
}
void deleteStream(void* stream) noexcept { cudaStreamDestroy(streamOf(stream)); }
void synchronize(void* stream) {
  check(cudaStreamSynchronize(streamOf(stream)), "cudaStreamSynchronize");
}
bool isCaptured(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(streamOf(stream), &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}

void* newEvent() {
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
void await(void* event) { check(cudaEventSynchronize(eventOf(event)), "cudaEventSynchronize"); }

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
