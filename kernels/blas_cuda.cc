// Opens cuBLAS by dlopen, and passes row-major products to it as transposed ones. Several products
// are one call where this cuBLAS and this GPU have it.
#include "kernels/blas_cuda.h"

#include <cublas_v2.h>
#include <dlfcn.h>

#include <algorithm>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/pointers_cuda.h"
#include "src/base/error.h"
#include "src/base/text.h"

namespace moeccl::cuda {

struct Blas::Library {
  void* handle = nullptr;
  decltype(&::cublasCreate_v2) create;
  decltype(&::cublasDestroy_v2) destroy;
  decltype(&::cublasSetStream_v2) setStream;
  decltype(&::cublasSetWorkspace_v2) setWorkspace;
  decltype(&::cublasGetStatusString) text;
  cublasStatus_t (*multiply)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                             const void* alpha, const void* a, cudaDataType, int, long long,
                             const void* b, cudaDataType, int, long long, const void* beta, void* c,
                             cudaDataType, int, long long, int count, cublasComputeType_t,
                             cublasGemmAlgo_t);
  // Null where cuBLAS is older than 12.5.
  cublasStatus_t (*multiplyGroups)(cublasHandle_t, const cublasOperation_t*,
                                   const cublasOperation_t*, const int*, const int*, const int*,
                                   const void* alphas, const void* const* a, cudaDataType,
                                   const int*, const void* const* b, cudaDataType, const int*,
                                   const void* betas, void* const* c, cudaDataType, const int*,
                                   int groups, const int* sizes, cublasComputeType_t);

  Library() {
    // As it was built against first: other versions may have other types.
    const std::string own = "libcublas.so." + std::to_string(CUBLAS_VER_MAJOR);
    for (const std::string& name : {own, std::string("libcublas.so")})
      if (handle == nullptr) handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr)
      throw Error(moecclSystemError, "cuBLAS cannot be opened: " + std::string(dlerror()));
    const auto find = [this](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
      if (function == nullptr)
        throw Error(moecclSystemError, stringf("the cuBLAS that was found has no %s", name));
    };
    find(create, "cublasCreate_v2");
    find(destroy, "cublasDestroy_v2");
    find(setStream, "cublasSetStream_v2");
    find(setWorkspace, "cublasSetWorkspace_v2");
    find(text, "cublasGetStatusString");
    find(multiply, "cublasGemmStridedBatchedEx");
    multiplyGroups =
        reinterpret_cast<decltype(multiplyGroups)>(dlsym(handle, "cublasGemmGroupedBatchedEx"));
  }

  void check(cublasStatus_t status, const char* what) const {
    if (status != CUBLAS_STATUS_SUCCESS)
      throw Error(moecclUnhandledCudaError, stringf("%s: cuBLAS says %s", what, text(status)));
  }
};

namespace {

cudaDataType typeOf(moecclDataType_t datatype) {
  return datatype == moecclFloat16    ? CUDA_R_16F
         : datatype == moecclBfloat16 ? CUDA_R_16BF
                                      : CUDA_R_32F;
}

bool isEmpty(const Product& product) {
  return product.rows == 0 || product.columns == 0 || product.count == 0 ||
         (product.inner == 0 && product.adds);
}

void requireSizes(const Product& product) {
  const std::int64_t most = std::numeric_limits<int>::max();
  if (product.rows > most || product.columns > most || product.inner > most)
    throw Error(moecclInvalidUsage,
                stringf("a product of %lld x %lld x %lld on a GPU; cuBLAS takes "
                        "sizes below 2^31",
                        static_cast<long long>(product.rows), static_cast<long long>(product.inner),
                        static_cast<long long>(product.columns)));
}

// A product as cuBLAS is told of it. It takes matrices column by column, which transposes all of
// them: c^T = b^T a^T.
struct Transposed {
  cublasOperation_t operationA, operationB;
  int rows, columns, inner, leadingA, leadingB;  // of c^T, of what is b and a here

  explicit Transposed(const Product& product)
      : operationA(product.transpose == Transpose::second ? CUBLAS_OP_T : CUBLAS_OP_N),
        operationB(product.transpose == Transpose::first ? CUBLAS_OP_T : CUBLAS_OP_N),
        rows(static_cast<int>(product.columns)),
        columns(static_cast<int>(product.rows)),
        inner(static_cast<int>(product.inner)),
        leadingA(operationA == CUBLAS_OP_T ? inner : rows),
        leadingB(operationB == CUBLAS_OP_T ? columns : inner) {}
};

}  // namespace

struct Blas::Groups {
  std::vector<cublasOperation_t> operationsA, operationsB;
  std::vector<int> rows, columns, inner, leadingA, leadingB, leadingC, sizes;
  std::vector<float> alphas, betas;
  std::vector<ProductPointers> pointers;

  void clear() {
    operationsA.clear(), operationsB.clear();
    for (std::vector<int>* all : {&rows, &columns, &inner, &leadingA, &leadingB, &leadingC, &sizes})
      all->clear();
    alphas.clear(), betas.clear(), pointers.clear();
  }
  void add(const Product& product, std::int64_t elementBytes) {
    const Transposed it(product);
    operationsA.push_back(it.operationA), operationsB.push_back(it.operationB);
    rows.push_back(it.rows), columns.push_back(it.columns), inner.push_back(it.inner);
    leadingA.push_back(it.leadingA), leadingB.push_back(it.leadingB);
    leadingC.push_back(it.rows), sizes.push_back(static_cast<int>(product.count));
    alphas.push_back(1), betas.push_back(product.adds ? 1 : 0);
    for (std::int64_t i = 0; i < product.count; ++i)
      pointers.push_back(
          {static_cast<const std::byte*>(product.b) + i * product.apartB * elementBytes,
           static_cast<const std::byte*>(product.a) + i * product.apartA * elementBytes,
           static_cast<std::byte*>(product.c) + i * product.apartC * elementBytes});
  }
};

Blas::Blas(std::span<std::byte> workspace)
    : groups_(std::make_unique<Groups>()), workspace_(workspace) {
  // Never closed: CUDA does not support that.
  static const std::shared_ptr<const Library> opened = std::make_shared<const Library>();
  library_ = opened;
  cublasHandle_t handle = nullptr;
  library_->check(library_->create(&handle), "opening cuBLAS");
  handle_ = handle;
}

Blas::~Blas() { library_->destroy(static_cast<cublasHandle_t>(handle_)); }

void Blas::multiply(moecclDataType_t datatype, std::span<const Product> products, void* stream) {
  for (const Product& product : products) requireSizes(product);
  if (std::ranges::all_of(products, isEmpty)) return;
  const auto handle = static_cast<cublasHandle_t>(handle_);
  library_->check(library_->setStream(handle, static_cast<cudaStream_t>(stream)), "a stream");
  // Setting the stream takes the workspace away. The pointers of groups lie before it.
  library_->check(library_->setWorkspace(handle, workspace_.data() + kPointersBytes,
                                         workspace_.size() - kPointersBytes),
                  "a workspace");
  if (products.size() > 1 && multiplyGroups(datatype, products, stream)) return;
  for (const Product& product : products)
    if (!isEmpty(product)) multiplyOne(datatype, product);
}

void Blas::multiplyOne(moecclDataType_t datatype, const Product& product) {
  const Transposed it(product);
  const cudaDataType type = typeOf(datatype);
  const float one = 1, beta = product.adds ? 1 : 0;
  library_->check(
      library_->multiply(static_cast<cublasHandle_t>(handle_), it.operationA, it.operationB,
                         it.rows, it.columns, it.inner, &one, product.b, type, it.leadingA,
                         product.apartB, product.a, type, it.leadingB, product.apartA, &beta,
                         product.c, type, it.rows, product.apartC, static_cast<int>(product.count),
                         CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
      "a matrix product");
}

// False where this cuBLAS, or this GPU, has no such product, or there are too many.
bool Blas::multiplyGroups(moecclDataType_t datatype, std::span<const Product> products,
                          void* stream) {
  if (library_->multiplyGroups == nullptr) return false;
  Groups& all = *groups_;
  all.clear();
  for (const Product& product : products)
    if (!isEmpty(product)) all.add(product, datatype == moecclFloat32 ? 4 : 2);
  if (all.pointers.size() > kMostPointers) return false;
  const PointerArrays arrays = storePointers(all.pointers, workspace_.data(), stream);
  const cudaDataType type = typeOf(datatype);
  const cublasStatus_t status = library_->multiplyGroups(
      static_cast<cublasHandle_t>(handle_), all.operationsA.data(), all.operationsB.data(),
      all.rows.data(), all.columns.data(), all.inner.data(), all.alphas.data(), arrays.a, type,
      all.leadingA.data(), arrays.b, type, all.leadingB.data(), all.betas.data(), arrays.c, type,
      all.leadingC.data(), static_cast<int>(all.sizes.size()), all.sizes.data(),
      CUBLAS_COMPUTE_32F);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_ARCH_MISMATCH) return false;
  library_->check(status, "several matrix products");
  return true;
}

}  // namespace moeccl::cuda
