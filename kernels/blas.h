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

inline float dot(std::int64_t count, const float* a, const float* b) {
  return cblas_sdot(static_cast<blasint>(count), a, 1, b, 1);
}
inline double dot(std::int64_t count, const double* a, const double* b) {
  return cblas_ddot(static_cast<blasint>(count), a, 1, b, 1);
}

}  // namespace moeccl::blas
