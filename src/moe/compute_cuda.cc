// Computes a layer's loss, experts and residual branch on the caller's stream, by the kernels of
// kernels/ and cuBLAS. It makes the routers of its gates, and keeps the memory that they share.
#include "src/moe/compute_cuda.h"

#include <algorithm>
#include <vector>

#include "kernels/blas_cuda.h"
#include "kernels/expert.h"
#include "kernels/gates/gate_cuda.h"
#include "kernels/permute.h"
#include "kernels/reduce.h"
#include "src/base/error.h"
#include "src/base/text.h"
#include "src/moe/router_cuda.h"

namespace moeccl {
namespace {

constexpr std::size_t kBlasBytes = std::size_t{32} << 20;

class CudaCompute final : public GpuCompute<Compute> {
 public:
  explicit CudaCompute(const LayerShape& shape)
      : GpuCompute(shape),
        lossGate_(shape.gate, shape.datatype, 1, 1),
        blasWorkspace_(allocate(kBlasBytes)),
        blas_({static_cast<std::byte*>(blasWorkspace_.get()), kBlasBytes}) {}

  void addSums(double* sums, std::int64_t count, const double* rows, std::int64_t rowCount,
               std::int64_t distance, moecclStream_t stream) override {
    const std::int64_t most = cuda::kMaxTerms - 1;
    for (std::int64_t first = 0; first < rowCount; first += most) {
      terms_.assign(1, bytes(sums));
      for (std::int64_t row = first; row < std::min(rowCount, first + most); ++row)
        terms_.push_back(bytes(rows + row * distance));
      cuda::reduce(moecclSum, moecclFloat64, bytes(sums), terms_.data(), 1, terms_.size(),
                   static_cast<std::size_t>(count) * sizeof(double), stream);
    }
  }
  void lossBackward(const double* sums, double scale, double* gradient,
                    moecclStream_t stream) override {
    lossGate_.loss(sums, scale, gradient, nullptr, stream);
  }
  double auxiliaryLoss(const double* sums) const override {
    std::vector<double> gradient(static_cast<std::size_t>(gates::sumsSize(shape().gate)));
    return gates::Gate<double>(shape().gate).loss(sums, 0, gradient.data());
  }

  // Neighbours with as many rows are one product.
  std::int64_t expertsAtOnce() const override { return shape().localExperts; }
  void reserveRows(std::int64_t rows) override {
    const auto size = [&](std::int64_t hidden) {
      const cuda::ExpertShape one = expertShape(1, hidden);
      return shape().training ? cuda::expertBackwardWorkspace(one, rows)
                              : cuda::expertWorkspace(one, rows);
    };
    const std::size_t needed = size(std::max(shape().localHidden, shape().residual));
    if (needed > rowBytes_) grow(rowWorkspace_, rowBytes_, needed);
  }
  void expertForward(const LayerWeights& weights, const ExpertRows& rows, const void* tokens,
                     void* results, moecclStream_t stream) override {
    cuda::expertForward(expertShape(rows.experts(), shape().localHidden),
                        stackFrom<cuda::StackedWeights>(weights, rows.first), tokens, rows.begins,
                        blas_, workspaceOf(rows.begins), results, stream);
  }
  void expertBackward(const LayerWeights& weights, const LayerGradients& gradients,
                      const ExpertRows& rows, const void* tokens, void* rowGradients,
                      moecclStream_t stream) override {
    cuda::expertBackward(expertShape(rows.experts(), shape().localHidden),
                         stackFrom<cuda::StackedWeights>(weights, rows.first), tokens, rowGradients,
                         rows.begins, blas_, workspaceOf(rows.begins),
                         stackFrom<cuda::StackedGradients>(gradients, rows.first), rowGradients,
                         stream);
  }

  void residualForward(const MlpWeights& weights, std::int64_t count, const void* tokens,
                       void* results, moecclStream_t stream) override {
    const std::int64_t begins[] = {0, count};
    cuda::expertForward(expertShape(1, shape().residual),
                        {weights.w1, weights.b1, weights.w2, weights.b2}, tokens, begins, blas_,
                        workspaceOf(begins), results, stream);
  }
  void residualBackward(const MlpWeights& weights, const MlpGradients& gradients,
                        std::int64_t count, const void* tokens, void* rowGradients,
                        moecclStream_t stream) override {
    const std::int64_t begins[] = {0, count};
    cuda::expertBackward(
        expertShape(1, shape().residual), {weights.w1, weights.b1, weights.w2, weights.b2}, tokens,
        rowGradients, begins, blas_, workspaceOf(begins),
        {gradients.w1, gradients.b1, gradients.w2, gradients.b2}, rowGradients, stream);
  }

  Routers routers(int count, std::int64_t tokens, int keeps) override {
    const auto lists = std::make_shared<CudaLists>(*this, gateMemory_, count, tokens);
    Routers made;
    for (int i = 0; i < count; ++i)
      made.push_back(
          std::make_unique<CudaRouter>(*this, gateMemory_, lists, i, tokens, i == keeps));
    return made;
  }
  void list(std::span<const std::unique_ptr<Router>> routers, const ExpertCounts& counts,
            std::span<const std::int64_t*> begins, moecclStream_t stream) override {
    const auto at = [&](std::size_t i) { return static_cast<CudaRouter*>(routers[i].get()); };
    ExpertCounts all = counts;
    for (std::size_t i = 0; i < routers.size(); ++i)
      if (double* const kept = at(i)->takeKept(); kept != nullptr) {
        all.sums = kept;
        all.sumsGroup = static_cast<std::int64_t>(i);
      }
    const std::int64_t* const first = at(0)->list(all, stream);
    for (std::size_t i = 0; i < begins.size(); ++i)
      begins[i] = first + static_cast<std::int64_t>(i) * (shape().experts + 1);
  }
  void gather(std::span<const Gathering> parts, moecclStream_t stream) override {
    gatherOnGpu<CudaRouter>(parts, shape().choices, bytesOf(shape().embedding), gathered_, stream);
  }

 private:
  cuda::ExpertShape expertShape(std::int64_t experts, std::int64_t hidden) const {
    return {datatype(), shape().activation, experts, shape().embedding, hidden};
  }
  // The weights, or where the gradients go, of the caller's experts from `first` on.
  template <typename Pointer>
  Pointer from(Pointer all, std::int64_t first, std::int64_t size) const {
    return all == nullptr ? nullptr : at(all, first * size);
  }
  template <typename Stack, typename All>
  Stack stackFrom(const All& all, std::int64_t first) const {
    const std::int64_t matrix = shape().embedding * shape().localHidden;
    return {from(all.w1, first, matrix), from(all.b1, first, shape().localHidden),
            from(all.w2, first, matrix), from(all.b2, first, shape().embedding)};
  }
  std::span<std::byte> workspaceOf(std::span<const std::int64_t> begins) {
    reserveRows(begins.back());
    return {bytes(rowWorkspace_.get()), rowBytes_};
  }

  const cuda::Gate lossGate_;
  Memory blasWorkspace_;
  cuda::Blas blas_;
  GateMemory gateMemory_{*this, blas_};
  Memory rowWorkspace_;  // of experts
  std::size_t rowBytes_ = 0;
  std::vector<const std::byte*> terms_;  // of the sum at hand
  std::vector<cuda::GatheredRows> gathered_;
};

}  // namespace

std::unique_ptr<Compute> cudaCompute(const LayerShape& shape) {
  if (shape.datatype == moecclFloat64)
    throw Error(
        moecclInvalidArgument,
        stringf("config.datatype is %d; on GPUs it must be moecclFloat32 (%d), moecclFloat16 "
                "(%d) or moecclBfloat16 (%d)",
                shape.datatype, moecclFloat32, moecclFloat16, moecclBfloat16));
  if (shape.activation == Activation::swiglu)
    throw Error(moecclInvalidArgument,
                stringf("config.activation is %d; on GPUs it must be moecclMoeGelu (%d) or "
                        "moecclMoeRelu (%d)",
                        moecclMoeSwiglu, moecclMoeGelu, moecclMoeRelu));
  return std::make_unique<CudaCompute>(shape);
}

int exchangeCudaDevice(int device) { return cuda::exchangeDevice(device); }

}  // namespace moeccl
