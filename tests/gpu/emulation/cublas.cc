// In place of cuBLAS, as plain loops that a kernel of one thread runs.
#include <cublas_v2.h>

#include <algorithm>
#include <utility>

#include "kernels/reduce_ops.h"

struct EmulatedBlas {
  cudaStream_t stream = nullptr;
};

namespace {

using moeccl::Bfloat16;
using moeccl::Float16;
using moeccl::Unchanged;

// Column-major.
struct Matrix {
  cublasOperation_t operation;
  int leading;
  long long apart;
  long long at(int row, int column) const {
    return operation == CUBLAS_OP_N ? row + static_cast<long long>(column) * leading
                                    : column + static_cast<long long>(row) * leading;
  }
};

struct Products {
  int rows, columns, inner, count;
  Matrix a, b, c;
  float alpha, beta;

  bool valid() const {
    const bool wholeA = a.leading >= std::max(1, a.operation == CUBLAS_OP_N ? rows : inner);
    const bool wholeB = b.leading >= std::max(1, b.operation == CUBLAS_OP_N ? inner : columns);
    return wholeA && wholeB && c.leading >= std::max(1, rows) && rows >= 0 && columns >= 0 &&
           inner >= 0 && count >= 0;
  }
};

// Calls function(Format{}), which says how it went.
template <typename Function>
cublasStatus_t withFormat(cudaDataType type, Function function) {
  switch (type) {
    case CUDA_R_16F:
      return function(Float16{});
    case CUDA_R_16BF:
      return function(Bfloat16{});
    case CUDA_R_32F:
      return function(Unchanged<float>{});
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

template <typename Format>
void multiply(Products all, const typename Format::Bits* a, const typename Format::Bits* b,
              typename Format::Bits* c) {
  for (int one = 0; one < all.count; ++one)
    for (int row = 0; row < all.rows; ++row)
      for (int column = 0; column < all.columns; ++column) {
        float sum = 0;
        for (int i = 0; i < all.inner; ++i)
          sum += Format::decode(a[one * all.a.apart + all.a.at(row, i)]) *
                 Format::decode(b[one * all.b.apart + all.b.at(i, column)]);
        auto& target = c[one * all.c.apart + all.c.at(row, column)];
        // With beta 0 what was there is not read: it may be NaN.
        const float before = all.beta == 0 ? 0 : all.beta * Format::decode(target);
        target = Format::encode(all.alpha * sum + before);
      }
}

// Launches products whose matrices' addresses lie on the GPU.
template <typename Format>
cublasStatus_t launchListed(const Products& all, const void* const* a, const void* const* b,
                            void* const* c, cudaStream_t stream) {
  const void* parameters[] = {&all, &a, &b, &c};
  void (*const kernel)(Products, const void* const*, const void* const*, void* const*) =
      [](Products all, const void* const* a, const void* const* b, void* const* c) {
        using Bits = typename Format::Bits;
        const int count = std::exchange(all.count, 1);
        for (int i = 0; i < count; ++i)
          multiply<Format>(all, static_cast<const Bits*>(a[i]), static_cast<const Bits*>(b[i]),
                           static_cast<Bits*>(c[i]));
      };
  const cudaError_t status =
      cudaLaunchKernel(kernel, 1, 1, const_cast<void**>(parameters), 0, stream);
  return status == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

template <typename Format>
cublasStatus_t launch(const Products& all, const void* a, const void* b, void* c,
                      cudaStream_t stream) {
  const void* parameters[] = {&all, &a, &b, &c};
  void (*const kernel)(Products, const void*, const void*, void*) = [](Products all, const void* a,
                                                                       const void* b, void* c) {
    using Bits = typename Format::Bits;
    multiply<Format>(all, static_cast<const Bits*>(a), static_cast<const Bits*>(b),
                     static_cast<Bits*>(c));
  };
  const cudaError_t status =
      cudaLaunchKernel(kernel, 1, 1, const_cast<void**>(parameters), 0, stream);
  return status == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

}  // namespace

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  *handle = new EmulatedBlas;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace, std::size_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0) return CUBLAS_STATUS_INVALID_VALUE;
  // It is used: what else lies there is lost.
  moeccl::emulation::spoil(workspace, std::min<std::size_t>(bytes, 4096), handle->stream);
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS ? "success" : "invalid value";
}

cublasStatus_t cublasGemmStridedBatchedEx(
    cublasHandle_t handle, cublasOperation_t transposeA, cublasOperation_t transposeB, int rows,
    int columns, int inner, const void* alpha, const void* a, cudaDataType typeA, int leadingA,
    long long apartA, const void* b, cudaDataType typeB, int leadingB, long long apartB,
    const void* beta, void* c, cudaDataType typeC, int leadingC, long long apartC, int count,
    cublasComputeType_t compute, cublasGemmAlgo_t) {
  const Products all{rows,
                     columns,
                     inner,
                     count,
                     {transposeA, leadingA, apartA},
                     {transposeB, leadingB, apartB},
                     {CUBLAS_OP_N, leadingC, apartC},
                     *static_cast<const float*>(alpha),
                     *static_cast<const float*>(beta)};
  if (!all.valid() || typeA != typeB || typeA != typeC || compute != CUBLAS_COMPUTE_32F)
    return CUBLAS_STATUS_INVALID_VALUE;
  return withFormat(
      typeA, [&]<typename Format>(Format) { return launch<Format>(all, a, b, c, handle->stream); });
}

cublasStatus_t cublasGemmGroupedBatchedEx(
    cublasHandle_t handle, const cublasOperation_t* transposeA, const cublasOperation_t* transposeB,
    const int* rows, const int* columns, const int* inner, const void* alphas, const void* const* a,
    cudaDataType typeA, const int* leadingA, const void* const* b, cudaDataType typeB,
    const int* leadingB, const void* betas, void* const* c, cudaDataType typeC, const int* leadingC,
    int groups, const int* sizes, cublasComputeType_t compute) {
  // Where cuBLAS is not able to, single products must do.
  if (typeA == CUDA_R_16F) return CUBLAS_STATUS_NOT_SUPPORTED;
  for (int group = 0, first = 0; group < groups; first += sizes[group++]) {
    const Products all{rows[group],
                       columns[group],
                       inner[group],
                       sizes[group],
                       {transposeA[group], leadingA[group], 0},
                       {transposeB[group], leadingB[group], 0},
                       {CUBLAS_OP_N, leadingC[group], 0},
                       static_cast<const float*>(alphas)[group],
                       static_cast<const float*>(betas)[group]};
    if (!all.valid() || typeA != typeB || typeA != typeC || compute != CUBLAS_COMPUTE_32F)
      return CUBLAS_STATUS_INVALID_VALUE;
    const cublasStatus_t status = withFormat(typeA, [&]<typename Format>(Format) {
      return launchListed<Format>(all, a + first, b + first, c + first, handle->stream);
    });
    if (status != CUBLAS_STATUS_SUCCESS) return status;
  }
  return CUBLAS_STATUS_SUCCESS;
}
