// The runtime's functions as nccl_gpu.cc calls them; kernels end the process.
#include "tests/exec/cuda_runtime_double.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "kernels/copy.h"
#include "kernels/latency_rows.h"
#include "kernels/quantise.h"
#include "kernels/reduce.h"
#include "kernels/row_lists.h"
#include "kernels/weigh.h"

using moeccl::test::cudaRuntime;

namespace moeccl::test {

CudaRuntimeDouble& cudaRuntime() {
  static CudaRuntimeDouble one;
  return one;
}

void CudaRuntimeDouble::destroyGraph() {
  for (const Kept& kept : std::exchange(retained, {})) kept.destroy(kept.what);
}

}  // namespace moeccl::test

namespace moeccl::cuda {

// No test of these asks for a kernel.
void copyBlocks(std::span<const BlockCopy>, void*) { std::abort(); }
void divide(moecclDataType_t, std::byte*, std::size_t, std::int64_t, void*) { std::abort(); }
void reduce(moecclRedOp_t, moecclDataType_t, std::byte*, const std::byte* const*, std::size_t,
            std::size_t, std::size_t, void*) {
  std::abort();
}
void copyRows(const RowMatrices&, const RowCopies&, void*) { std::abort(); }
void addRows(moecclDataType_t, const RowMatrices&, const RowSums&, const RowWeights&, void*) {
  std::abort();
}
void weighGradients(const WeighedRows&, float*, void*) { std::abort(); }
void runLatency(LatencyStep, const LatencyRows&, void*) { std::abort(); }
void quantise(moecclDataType_t, moecclDataType_t, const std::byte*, std::size_t, std::size_t,
              std::byte*, void*) {
  std::abort();
}
void dequantise(moecclDataType_t, moecclDataType_t, const std::byte*, std::size_t, std::size_t,
                std::byte*, void*) {
  std::abort();
}

}  // namespace moeccl::cuda

namespace {

thread_local cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;

cudaError_t mayWait() {
  return cudaRuntime().capturedGlobally && mode != cudaStreamCaptureModeRelaxed
             ? cudaErrorStreamCaptureUnsupported
             : cudaSuccess;
}

cudaError_t allocate(void** memory, std::size_t bytes) {
  if (const cudaError_t refused = mayWait(); refused != cudaSuccess) return refused;
  *memory = std::malloc(bytes);
  ++cudaRuntime().allocations;
  return cudaSuccess;
}

cudaError_t release(void* memory) {
  if (const cudaError_t refused = mayWait(); refused != cudaSuccess) return refused;
  std::free(memory);
  if (memory != nullptr) --cudaRuntime().allocations;
  return cudaSuccess;
}

template <typename Handle>
cudaError_t make(Handle* handle) {
  static int anything;
  *handle = reinterpret_cast<Handle>(&anything);
  return mayWait();
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  return *value = 108, cudaSuccess;  // processors of an A100
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "NVIDIA A100");
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "the double's error"; }
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorOfTheDouble"; }

cudaError_t cudaMalloc(void** memory, std::size_t bytes) { return allocate(memory, bytes); }
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) { return allocate(memory, bytes); }
cudaError_t cudaFree(void* memory) { return release(memory); }
cudaError_t cudaFreeHost(void* memory) { return release(memory); }
cudaError_t cudaMemsetAsync(void*, int, std::size_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaMemcpyAsync(void*, const void*, std::size_t, cudaMemcpyKind, cudaStream_t) {
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return *least = 0, *greatest = -1, cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return make(stream);
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return mayWait(); }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return make(event); }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return mayWait(); }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return mayWait(); }

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* other) {
  std::swap(mode, *other);
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaRuntime().status;
  return cudaRuntime().captureInfo;
}
#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t**, const cudaGraphEdgeData**,
                                     std::size_t*) {
#else
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t, cudaStreamCaptureStatus* status,
                                        unsigned long long* id, cudaGraph_t* graph,
                                        const cudaGraphNode_t**, std::size_t*) {
#endif
  *status = cudaRuntime().status;
  *id = 7;
  if (graph != nullptr) make(graph);
  return cudaRuntime().captureInfo;
}
cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void* what, cudaHostFn_t destroy,
                                 unsigned, unsigned) {
  cudaRuntime().created.push_back({what, destroy});
  return make(object);
}
cudaError_t cudaGraphRetainUserObject(cudaGraph_t, cudaUserObject_t, unsigned, unsigned flags) {
  if (flags != cudaGraphUserObjectMove) std::abort();
  cudaRuntime().retained.push_back(cudaRuntime().created.back());
  return cudaSuccess;
}

}  // extern "C"
