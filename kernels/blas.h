// BLAS by the type of its numbers, row-major.
#pragma once

#include <cblas.h>

#include <cstdint>

namespace moeccl::blas {

// c [rows][columns] = op(a) op(b) + beta c, where op(a) is [rows][inner] and op(b)
// [inner][columns]: the matrices, or what lies in memory transposed.
template <typename Real>
void multiply(CBLAS_TRANSPOSE transposeA, CBLAS_TRANSPOSE transposeB, std::int64_t rows,
              std::int64_t columns, std::int64_t inner, const Real* a, const Real* b, Real beta,
              Real* c) {
  const auto size = [](std::int64_t value) { return static_cast<blasint>(value); };
  const blasint m = size(rows), n = size(columns), k = size(inner);
  const blasint rowOfA = transposeA == CblasTrans ? m : k;
  const blasint rowOfB = transposeB == CblasTrans ? k : n;
  if constexpr (sizeof(Real) == sizeof(float))
    cblas_sgemm(CblasRowMajor, transposeA, transposeB, m, n, k, 1, a, rowOfA, b, rowOfB, beta, c,
                n);
  else
    cblas_dgemm(CblasRowMajor, transposeA, transposeB, m, n, k, 1, a, rowOfA, b, rowOfB, beta, c,
                n);
}

}  // namespace moeccl::blas
