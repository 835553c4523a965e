// In place of cuBLAS, as plain loops that a kernel of one thread runs.
#include <cublas_v2.h>

#include <algorithm>

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
};

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
  return cudaMemsetAsync(workspace, 0xc3, std::min<std::size_t>(bytes, 4096), handle->stream) ==
                 cudaSuccess
             ? CUBLAS_STATUS_SUCCESS
             : CUBLAS_STATUS_INVALID_VALUE;
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
  const bool wholeA = leadingA >= std::max(1, transposeA == CUBLAS_OP_N ? rows : inner);
  const bool wholeB = leadingB >= std::max(1, transposeB == CUBLAS_OP_N ? inner : columns);
  if (!wholeA || !wholeB || leadingC < std::max(1, rows) || typeA != typeB || typeA != typeC ||
      rows < 0 || columns < 0 || inner < 0 || count < 0 || compute != CUBLAS_COMPUTE_32F)
    return CUBLAS_STATUS_INVALID_VALUE;
  const Products all{rows,
                     columns,
                     inner,
                     count,
                     {transposeA, leadingA, apartA},
                     {transposeB, leadingB, apartB},
                     {CUBLAS_OP_N, leadingC, apartC},
                     *static_cast<const float*>(alpha),
                     *static_cast<const float*>(beta)};
  switch (typeA) {
    case CUDA_R_16F:
      return launch<Float16>(all, a, b, c, handle->stream);
    case CUDA_R_16BF:
      return launch<Bfloat16>(all, a, b, c, handle->stream);
    case CUDA_R_32F:
      return launch<Unchanged<float>>(all, a, b, c, handle->stream);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}
