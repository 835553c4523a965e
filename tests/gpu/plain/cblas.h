/* Plain loops in the place of a BLAS, for machines that have none: enough for the CPU's kernels. */
#pragma once

#include <cstddef>

enum CBLAS_ORDER { CblasRowMajor = 101 };
enum CBLAS_TRANSPOSE { CblasNoTrans = 111, CblasTrans = 112 };
using blasint = int;

template <typename Real>
void plainGemm(CBLAS_TRANSPOSE transA, CBLAS_TRANSPOSE transB, blasint rows, blasint columns,
               blasint inner, double alpha, const Real* a, blasint lda, const Real* b, blasint ldb,
               double beta, Real* c, blasint ldc) {
  const auto at = [](CBLAS_TRANSPOSE transposed, std::size_t row, std::size_t column,
                     std::size_t ld) {
    return transposed == CblasTrans ? column * ld + row : row * ld + column;
  };
  for (blasint row = 0; row < rows; ++row)
    for (blasint column = 0; column < columns; ++column) {
      double sum = 0;
      for (blasint i = 0; i < inner; ++i)
        sum += static_cast<double>(a[at(transA, row, i, lda)]) * b[at(transB, i, column, ldb)];
      Real& result = c[static_cast<std::size_t>(row) * ldc + column];
      result = static_cast<Real>(alpha * sum + (beta == 0 ? 0 : beta * result));
    }
}

inline void cblas_sgemm(CBLAS_ORDER, CBLAS_TRANSPOSE transA, CBLAS_TRANSPOSE transB, blasint rows,
                        blasint columns, blasint inner, float alpha, const float* a, blasint lda,
                        const float* b, blasint ldb, float beta, float* c, blasint ldc) {
  plainGemm(transA, transB, rows, columns, inner, alpha, a, lda, b, ldb, beta, c, ldc);
}

inline void cblas_dgemm(CBLAS_ORDER, CBLAS_TRANSPOSE transA, CBLAS_TRANSPOSE transB, blasint rows,
                        blasint columns, blasint inner, double alpha, const double* a, blasint lda,
                        const double* b, blasint ldb, double beta, double* c, blasint ldc) {
  plainGemm(transA, transB, rows, columns, inner, alpha, a, lda, b, ldb, beta, c, ldc);
}

inline float cblas_sdot(blasint count, const float* a, blasint, const float* b, blasint) {
  double sum = 0;
  for (blasint i = 0; i < count; ++i) sum += static_cast<double>(a[i]) * b[i];
  return static_cast<float>(sum);
}

inline double cblas_ddot(blasint count, const double* a, blasint, const double* b, blasint) {
  double sum = 0;
  for (blasint i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}
