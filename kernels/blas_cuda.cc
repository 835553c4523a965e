#include "kernels/blas_cuda.h"

#include <cublas_v2.h>
#include <dlfcn.h>

#include <limits>
#include <string>
#include <type_traits>

#include "src/error.h"
#include "src/text.h"

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
  }

  void check(cublasStatus_t status, const char* what) const {
    if (status != CUBLAS_STATUS_SUCCESS)
      throw Error(moecclUnhandledCudaError, stringf("%s: cuBLAS says %s", what, text(status)));
  }
};

Blas::Blas(std::span<std::byte> workspace) : workspace_(workspace) {
  // Never closed: CUDA does not support that.
  static const std::shared_ptr<const Library> opened = std::make_shared<const Library>();
  library_ = opened;
  cublasHandle_t handle = nullptr;
  library_->check(library_->create(&handle), "opening cuBLAS");
  handle_ = handle;
}

Blas::~Blas() { library_->destroy(static_cast<cublasHandle_t>(handle_)); }

void Blas::multiply(moecclDataType_t datatype, const Product& product, void* stream) {
  if (product.rows == 0 || product.columns == 0 || product.count == 0) return;
  if (product.inner == 0 && product.adds) return;
  const std::int64_t most = std::numeric_limits<int>::max();
  if (product.rows > most || product.columns > most || product.inner > most)
    throw Error(moecclInvalidUsage,
                stringf("a product of %lld x %lld x %lld on a GPU; cuBLAS takes "
                        "sizes below 2^31",
                        static_cast<long long>(product.rows), static_cast<long long>(product.inner),
                        static_cast<long long>(product.columns)));
  const cudaDataType type = datatype == moecclFloat16    ? CUDA_R_16F
                            : datatype == moecclBfloat16 ? CUDA_R_16BF
                                                         : CUDA_R_32F;
  const auto handle = static_cast<cublasHandle_t>(handle_);
  library_->check(library_->setStream(handle, static_cast<cudaStream_t>(stream)), "a stream");
  // Setting the stream takes the workspace away.
  library_->check(library_->setWorkspace(handle, workspace_.data(), workspace_.size()),
                  "a workspace");
  const bool first = product.transpose == Transpose::first;
  const bool second = product.transpose == Transpose::second;
  const float one = 1, beta = product.adds ? 1 : 0;
  const auto size = [](std::int64_t value) { return static_cast<int>(value); };
  // cuBLAS takes matrices column by column, which transposes all of them: c^T = b^T a^T.
  library_->check(library_->multiply(
                      handle, second ? CUBLAS_OP_T : CUBLAS_OP_N, first ? CUBLAS_OP_T : CUBLAS_OP_N,
                      size(product.columns), size(product.rows), size(product.inner), &one,
                      product.b, type, size(second ? product.inner : product.columns),
                      product.apartB, product.a, type, size(first ? product.rows : product.inner),
                      product.apartA, &beta, product.c, type, size(product.columns), product.apartC,
                      size(product.count), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                  "a matrix product");
}

}  // namespace moeccl::cuda
