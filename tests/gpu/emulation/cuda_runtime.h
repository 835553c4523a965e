// In place of CUDA's header: what the kernels and their launchers use of it, on the host. Work is
// done when somebody waits for it, or frees memory. Streams, which CUDA orders by events alone,
// keep the order of the calls.
#pragma once

#include <math.h>  // as nvcc does

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tests/gpu/emulation/emulator.h"
#include "tests/gpu/emulation/sanitizer.h"

// ---- the language ----

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
// Blocks run one after another.
#define __shared__ static

// ---- barriers, votes and shuffles ----

namespace moeccl::emulation {

template <typename T>
std::uint64_t wordOf(const T& value) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t) && std::is_trivially_copyable_v<T>);
  std::uint64_t word = 0;
  std::memcpy(&word, &value, sizeof value);
  return word;
}

// `from` counts lanes of the warp. What lies behind a width's lanes is a lane's own.
template <typename T>
T shuffle(const char* what, unsigned mask, T value, int from, Site site) {
  const std::uint64_t* const words = meet(what, mask, wordOf(value), site);
  if (!(mask >> from & 1)) fault("reads from a lane that is not in the mask", site);
  T result;
  std::memcpy(&result, &words[from], sizeof result);
  return result;
}

// Lanes of the mask for whose words the predicate holds.
template <typename Predicate>
unsigned vote(const char* what, unsigned mask, std::uint64_t word, Site site, Predicate predicate) {
  const std::uint64_t* const words = meet(what, mask, word, site);
  unsigned votes = 0;
  for (int lane = 0; lane < warpSize; ++lane)
    if (mask >> lane & 1 && predicate(words[lane])) votes |= 1u << lane;
  return votes;
}

}  // namespace moeccl::emulation

using EmulatedSite = moeccl::emulation::Site;

inline void __syncthreads(EmulatedSite site = EmulatedSite::here()) {
  moeccl::emulation::waitForBlock("__syncthreads", site);
}
inline void __syncwarp(unsigned mask = ~0u, EmulatedSite site = EmulatedSite::here()) {
  moeccl::emulation::meet("__syncwarp", mask, 0, site);
}
inline void __threadfence() {}

inline unsigned __ballot_sync(unsigned mask, int predicate,
                              EmulatedSite site = EmulatedSite::here()) {
  return moeccl::emulation::vote("__ballot_sync", mask, predicate != 0, site,
                                 [](std::uint64_t word) { return word != 0; });
}
inline int __any_sync(unsigned mask, int predicate, EmulatedSite site = EmulatedSite::here()) {
  return __ballot_sync(mask, predicate, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, EmulatedSite site = EmulatedSite::here()) {
  return __ballot_sync(mask, predicate, site) == mask;
}
template <typename T>
unsigned __match_any_sync(unsigned mask, T value, EmulatedSite site = EmulatedSite::here()) {
  const std::uint64_t own = moeccl::emulation::wordOf(value);
  return moeccl::emulation::vote("__match_any_sync", mask, own, site,
                                 [own](std::uint64_t word) { return word == own; });
}

template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, int width = warpSize,
              EmulatedSite site = EmulatedSite::here()) {
  const int first = moeccl::emulation::laneOfThread() / width * width;
  return moeccl::emulation::shuffle("__shfl_sync", mask, value, first + (lane & (width - 1)), site);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = warpSize,
                  EmulatedSite site = EmulatedSite::here()) {
  const int own = moeccl::emulation::laneOfThread(), from = own ^ lanes;
  const bool inside = from / width <= own / width;
  return moeccl::emulation::shuffle("__shfl_xor_sync", mask, value, inside ? from : own, site);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned lanes, int width = warpSize,
                 EmulatedSite site = EmulatedSite::here()) {
  const int own = moeccl::emulation::laneOfThread(), from = own - static_cast<int>(lanes);
  const bool inside = from >= own / width * width;
  return moeccl::emulation::shuffle("__shfl_up_sync", mask, value, inside ? from : own, site);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned lanes, int width = warpSize,
                   EmulatedSite site = EmulatedSite::here()) {
  const int own = moeccl::emulation::laneOfThread(), from = own + static_cast<int>(lanes);
  const bool inside = from < (own / width + 1) * width;
  return moeccl::emulation::shuffle("__shfl_down_sync", mask, value, inside ? from : own, site);
}

// As kernels/launch_cuda.h has it for GPUs.
namespace moeccl::cuda {
using emulation::sharedMemory;
}

// ---- arithmetic ----

inline int __popc(unsigned bits) { return std::popcount(bits); }
inline int __clz(int bits) { return std::countl_zero(static_cast<unsigned>(bits)); }
inline int __ffs(int bits) {
  return bits == 0 ? 0 : std::countr_zero(static_cast<unsigned>(bits)) + 1;
}
template <typename T>
T __ldg(const T* at) {
  return *at;
}

// No thread runs beside another.
template <typename T>
T atomicAdd(T* at, std::type_identity_t<T> value) {
  return std::exchange(*at, *at + value);
}
template <typename T>
T atomicMax(T* at, std::type_identity_t<T> value) {
  return std::exchange(*at, *at < value ? value : *at);
}
template <typename T>
T atomicCAS(T* at, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  return std::exchange(*at, *at == expected ? value : *at);
}

// ---- the runtime ----

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorNotReady = 600,
  cudaErrorLaunchFailure = 719,
  cudaErrorStreamCaptureImplicit = 906
};
struct EmulatedStream;
struct EmulatedEvent;
struct EmulatedGraph;
using cudaStream_t = EmulatedStream*;
using cudaEvent_t = EmulatedEvent*;
using cudaGraph_t = EmulatedGraph*;
using cudaGraphExec_t = EmulatedGraph*;
enum cudaMemcpyKind {
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice
};
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive };
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal,
  cudaStreamCaptureModeThreadLocal,
  cudaStreamCaptureModeRelaxed
};
constexpr unsigned cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2;
struct cudaDeviceProp {
  char name[64];
};

const char* cudaGetErrorString(cudaError_t status);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* device, int number);
cudaError_t cudaDeviceSynchronize();

cudaError_t cudaMalloc(void** memory, std::size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaMallocHost(void** memory, std::size_t bytes);
cudaError_t cudaFreeHost(void* memory);
cudaError_t cudaMemset(void* to, int value, std::size_t bytes);
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream);
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest);
cudaError_t cudaStreamCreate(cudaStream_t* stream);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreate(cudaEvent_t* event);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end);

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode);
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* runnable, cudaGraph_t graph, unsigned flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t runnable, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t runnable);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);

namespace moeccl::emulation {

// The number of kernels and memsets so far, by the thread that calls.
std::int64_t launches();

// Behind what the stream has, and without a launch: what lay in memory that is lent is lost.
void spoil(void* memory, std::size_t bytes, cudaStream_t stream);

// Behind what the stream has; returns what is wrong, on the host, with the launch. `address`: the
// kernel's. Where EMULATED_LAUNCHES names a file each run of a kernel adds a line to it: the file
// of its code, the address in that, threads, bytes of shared memory, and warps of a block that were
// busy.
cudaError_t launch(std::uintptr_t address, dim3 blocks, dim3 threads, std::size_t sharedBytes,
                   std::size_t parameterBytes, std::function<void()> kernel, cudaStream_t stream);

}  // namespace moeccl::emulation

// As CUDA does, it copies the parameters before it returns.
template <typename... Parameters>
cudaError_t cudaLaunchKernel(void (*kernel)(Parameters...), dim3 blocks, dim3 threads,
                             void** parameters, std::size_t sharedBytes, cudaStream_t stream) {
  auto values = [&]<std::size_t... i>(std::index_sequence<i...>) {
    return std::tuple<Parameters...>(*static_cast<const Parameters*>(parameters[i])...);
  }
  (std::index_sequence_for<Parameters...>{});
  return moeccl::emulation::launch(
      reinterpret_cast<std::uintptr_t>(kernel), blocks, threads, sharedBytes,
      (sizeof(Parameters) + ... + 0),
      [kernel, values = std::move(values)] { std::apply(kernel, values); }, stream);
}
