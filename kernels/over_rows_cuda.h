// Launches of kernels that go row by row, some threads a row (permute_rows.h). For *_cuda.cu alone.
#pragma once

#include <cstdint>

#include "kernels/launch_cuda.h"
#include "kernels/permute_rows.h"

namespace moeccl::cuda {

static_assert(kRowBlockThreads == kThreads);

// Calls body(row, thread) for `rows` rows by as many threads each as the shape says.
template <typename Body>
__global__ void __launch_bounds__(kThreads, kBlocksPerProcessor)
    rowKernel(RowShape shape, std::int64_t rows, Body body) {
  const std::int64_t blockRows = kThreads / shape.rowThreads;
  const std::int64_t rowInBlock = threadIdx.x / shape.rowThreads;
  const std::int64_t thread = threadIdx.x - rowInBlock * shape.rowThreads;
  for (std::int64_t row = blockIdx.x * blockRows + rowInBlock; row < rows;
       row += gridDim.x * blockRows)
    body(row, thread);
}

// Bodies are structures, as extended lambdas would need a compiler flag of their own.
template <typename Body>
void overRows(const RowShape& shape, std::int64_t rows, void* stream, const char* what, Body body) {
  if (rows == 0 || shape.vectors == 0) return;
  const std::int64_t blocks = (rows - 1) / shape.blockRows() + 1;
  launchKernel(what, rowKernel<Body>, gridOf(blocks), kThreads, stream, shape, rows, body);
}

}  // namespace moeccl::cuda
