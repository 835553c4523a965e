// Matrix products on a GPU by cuBLAS, which is opened when the first Blas is made, so that hosts
// need not have it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "moeccl/moeccl.h"

namespace moeccl::cuda {

enum class Transpose { none, first, second };

// c [rows][columns] = a b, or added to it, where a is [rows][inner] and b [inner][columns],
// row-major; Transpose says which of them lies in memory transposed.
struct Product {
  Transpose transpose = Transpose::none;
  std::int64_t rows, columns, inner;
  const void *a, *b;
  void* c;
  bool adds = false;
  // Several products at a time, of matrices so many elements apart.
  std::int64_t count = 1, apartA = 0, apartB = 0, apartC = 0;
};

class Blas {
 public:
  // The workspace is memory of the GPU, which lives as long; 32 MiB are enough for all that cuBLAS
  // knows. One stream at a time. Throws Error.
  explicit Blas(std::span<std::byte> workspace);
  ~Blas();

  // Multiplies float32, float16 or bfloat16, added up in float32; float32 is not rounded to shorter
  // numbers first. Several products, which must not depend on each other, are one call of cuBLAS
  // from 12.5 on.
  void multiply(moecclDataType_t datatype, std::span<const Product> products, void* stream);
  void multiply(moecclDataType_t datatype, const Product& product, void* stream) {
    multiply(datatype, {&product, 1}, stream);
  }

 private:
  struct Library;
  struct Groups;  // what cuBLAS is told of several products
  void multiplyOne(moecclDataType_t datatype, const Product& product);
  bool multiplyGroups(moecclDataType_t datatype, std::span<const Product> products, void* stream);

  std::shared_ptr<const Library> library_;
  std::unique_ptr<Groups> groups_;
  void* handle_ = nullptr;
  std::span<std::byte> workspace_;
};

}  // namespace moeccl::cuda
