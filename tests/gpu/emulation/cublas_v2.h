// In place of cuBLAS's header: what blas_cuda.cc uses of it. cublas.cc is the library that it
// opens.
#pragma once

#include <cuda_runtime.h>

#define CUBLAS_VER_MAJOR 0

enum cublasStatus_t {
  CUBLAS_STATUS_SUCCESS,
  CUBLAS_STATUS_INVALID_VALUE = 7,
  CUBLAS_STATUS_ARCH_MISMATCH,
  CUBLAS_STATUS_NOT_SUPPORTED = 15
};
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F = 68 };
enum cublasGemmAlgo_t { CUBLAS_GEMM_DEFAULT = -1 };
enum cudaDataType { CUDA_R_32F = 0, CUDA_R_16F = 2, CUDA_R_16BF = 14 };
struct EmulatedBlas;
using cublasHandle_t = EmulatedBlas*;

extern "C" {
[[gnu::visibility("default")]] cublasStatus_t cublasCreate_v2(cublasHandle_t* handle);
[[gnu::visibility("default")]] cublasStatus_t cublasDestroy_v2(cublasHandle_t handle);
[[gnu::visibility("default")]] cublasStatus_t cublasSetStream_v2(cublasHandle_t handle,
                                                                 cudaStream_t stream);
[[gnu::visibility("default")]] cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle,
                                                                    void* workspace,
                                                                    std::size_t bytes);
[[gnu::visibility("default")]] const char* cublasGetStatusString(cublasStatus_t status);
[[gnu::visibility("default")]] cublasStatus_t cublasGemmStridedBatchedEx(
    cublasHandle_t handle, cublasOperation_t transposeA, cublasOperation_t transposeB, int rows,
    int columns, int inner, const void* alpha, const void* a, cudaDataType typeA, int leadingA,
    long long apartA, const void* b, cudaDataType typeB, int leadingB, long long apartB,
    const void* beta, void* c, cudaDataType typeC, int leadingC, long long apartC, int count,
    cublasComputeType_t compute, cublasGemmAlgo_t algorithm);
[[gnu::visibility("default")]] cublasStatus_t cublasGemmGroupedBatchedEx(
    cublasHandle_t handle, const cublasOperation_t* transposeA, const cublasOperation_t* transposeB,
    const int* rows, const int* columns, const int* inner, const void* alphas, const void* const* a,
    cudaDataType typeA, const int* leadingA, const void* const* b, cudaDataType typeB,
    const int* leadingB, const void* betas, void* const* c, cudaDataType typeC, const int* leadingC,
    int groups, const int* sizes, cublasComputeType_t compute);
}
