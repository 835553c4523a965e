#include "src/moe/compute_cpu.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <type_traits>
#include <vector>

#include "kernels/copy.h"
#include "kernels/expert.h"
#include "src/base/error.h"
#include "src/moe/router_cpu.h"

namespace moeccl {
namespace {

// The caller's thread computes, and waits for exchanges itself.
class HostSideStream final : public SideStream {
 public:
  explicit HostSideStream(moecclComm_t comm) {
    moecclStream_t stream = nullptr;
    const moecclResult_t result = moecclStreamCreate(comm, &stream);
    if (result != moecclSuccess) throw Error(result, moecclGetLastError(comm));
    stream_.reset(stream);
  }
  moecclStream_t get() const override { return stream_.get(); }
  void follow(moecclStream_t) override {}
  moecclResult_t join(moecclStream_t) override { return moecclStreamSynchronize(stream_.get()); }
  void progress() override { moecclStreamQuery(stream_.get()); }

 private:
  struct Destroy {
    void operator()(void* stream) const { moecclStreamDestroy(stream); }
  };
  std::unique_ptr<void, Destroy> stream_;
};

template <typename Real>
class CpuCompute final : public Compute {
 public:
  explicit CpuCompute(const LayerShape& shape)
      : Compute(shape),
        workspace_(static_cast<std::size_t>(workspaceOf(shape))),
        gate_(shape.gate) {}

  bool onStreams() const override { return false; }

  Memory allocate(std::size_t bytes) override {
    return {::operator new(bytes), {[](void* memory) { ::operator delete(memory); }}};
  }
  void toHost(void* host, const void* from, std::size_t bytes, moecclStream_t) override {
    std::memcpy(host, from, bytes);
  }
  void fromHost(void* to, const void* host, std::size_t bytes, moecclStream_t) override {
    std::memcpy(to, host, bytes);
  }

  Memory allocateForHost(std::size_t bytes) override { return allocate(bytes); }
  void toHostLater(void* host, const void* from, std::size_t bytes,
                   moecclStream_t stream) override {
    toHost(host, from, bytes, stream);
  }
  std::unique_ptr<SideStream> sideStream(moecclComm_t comm) override {
    return std::make_unique<HostSideStream>(comm);
  }

  void clear(void* to, std::size_t bytes, moecclStream_t) override {
    std::fill_n(static_cast<std::byte*>(to), bytes, std::byte{0});
  }
  void copyRuns(std::span<const CopiedRun> runs, moecclStream_t) override {
    for (const CopiedRun& run : runs)
      std::copy_n(static_cast<const Real*>(run.from), run.count, static_cast<Real*>(run.to));
  }
  void add(void* to, const void* from, std::int64_t count, moecclStream_t) override {
    Real* const sum = static_cast<Real*>(to);
    const Real* const summand = static_cast<const Real*>(from);
    for (std::int64_t i = 0; i < count; ++i)
      sum[i] = narrowed<Real>(widen(sum[i]) + widen(summand[i]));
  }
  void transpose(void* to, const void* from, std::int64_t outer, std::int64_t inner,
                 std::int64_t block, std::int64_t distance, moecclStream_t) override {
    const auto bytes = [](std::int64_t elements) {
      return static_cast<std::ptrdiff_t>(elements * static_cast<std::int64_t>(sizeof(Real)));
    };
    for (std::int64_t i = 0; i < outer; ++i)
      copyBlocks(static_cast<std::byte*>(at(to, i * block)), bytes(outer * block),
                 static_cast<const std::byte*>(at(from, i * inner * distance)), bytes(distance),
                 static_cast<std::size_t>(bytes(block)), inner);
  }

  void addSums(double* sums, std::int64_t count, const double* rows, std::int64_t rowCount,
               std::int64_t distance, moecclStream_t) override {
    for (std::int64_t row = 0; row < rowCount; ++row)
      for (std::int64_t i = 0; i < count; ++i) sums[i] += rows[row * distance + i];
  }
  void lossBackward(const double* sums, double scale, double* gradient, moecclStream_t) override {
    gate_.loss(sums, scale, gradient);
  }
  double auxiliaryLoss(const double* sums) const override {
    std::vector<double> gradient(static_cast<std::size_t>(gates::sumsSize(shape().gate)));
    return gate_.loss(sums, 0, gradient.data());
  }

  // Exchanges advance between two calls.
  std::int64_t expertsAtOnce() const override { return 1; }
  void expertForward(const LayerWeights& weights, const ExpertRows& rows, const void* tokens,
                     void* results, moecclStream_t) override {
    eachExpert(rows, [&](std::int64_t expert, std::int64_t begin, std::int64_t count) {
      moeccl::expertForward<Real>(shape().activation, weightsOf(weights, expert), shape().embedding,
                                  shape().localHidden, static_cast<const Real*>(tokens) + begin,
                                  count, workspace_, static_cast<Real*>(results) + begin);
    });
  }
  void expertBackward(const LayerWeights& weights, const LayerGradients& gradients,
                      const ExpertRows& rows, const void* tokens, void* rowGradients,
                      moecclStream_t) override {
    eachExpert(rows, [&](std::int64_t expert, std::int64_t begin, std::int64_t count) {
      Real* const at = static_cast<Real*>(rowGradients) + begin;
      moeccl::expertBackward<Real>(shape().activation, weightsOf(weights, expert),
                                   shape().embedding, shape().localHidden,
                                   static_cast<const Real*>(tokens) + begin, at, count, workspace_,
                                   gradientsOf(gradients, expert), at);
    });
  }

  void residualForward(const MlpWeights& weights, std::int64_t count, const void* tokens,
                       void* results, moecclStream_t) override {
    moeccl::expertForward<Real>(shape().activation, weightsOf(weights), shape().embedding,
                                shape().residual, static_cast<const Real*>(tokens), count,
                                workspace_, static_cast<Real*>(results));
  }
  void residualBackward(const MlpWeights& weights, const MlpGradients& gradients,
                        std::int64_t count, const void* tokens, void* rowGradients,
                        moecclStream_t) override {
    Real* const rows = static_cast<Real*>(rowGradients);
    moeccl::expertBackward<Real>(
        shape().activation, weightsOf(weights), shape().embedding, shape().residual,
        static_cast<const Real*>(tokens), rows, count, workspace_,
        {static_cast<Real*>(gradients.w1), static_cast<Real*>(gradients.b1),
         static_cast<Real*>(gradients.w2), static_cast<Real*>(gradients.b2)},
        rows);
  }

  Routers routers(int count, std::int64_t tokens, int keeps) override {
    Routers made;
    for (int i = 0; i < count; ++i)
      made.push_back(std::make_unique<CpuRouter<Real>>(shape(), tokens, i == keeps));
    return made;
  }
  void list(std::span<const std::unique_ptr<Router>> routers, const ExpertCounts& counts,
            std::span<const std::int64_t*> begins, moecclStream_t) override {
    for (std::size_t i = 0; i < routers.size(); ++i)
      begins[i] = static_cast<CpuRouter<Real>*>(routers[i].get())
                      ->list(static_cast<std::int64_t>(i), counts);
  }
  void gather(std::span<const Gathering> parts, moecclStream_t stream) override {
    for (const Gathering& part : parts)
      part.router->gather({part.begin, part.count}, part.input, part.rows, stream);
  }

 private:
  static std::int64_t workspaceOf(const LayerShape& shape) {
    const std::int64_t hidden = std::max(shape.localHidden, shape.residual);
    if (kIsNarrow<Real>) return narrowExpertWorkspace(shape.embedding, hidden);
    return shape.training ? expertBackwardWorkspace(hidden) : expertWorkspace(hidden);
  }
  std::int64_t matrix() const { return shape().embedding * shape().localHidden; }

  // Calls function(expert, first element, rows).
  template <typename Function>
  void eachExpert(const ExpertRows& rows, Function function) const {
    for (std::int64_t i = 0; i < rows.experts(); ++i)
      function(rows.first + i, rows.begins[i] * shape().embedding,
               rows.begins[i + 1] - rows.begins[i]);
  }
  // One expert's of all; null stays null.
  template <typename Pointer>
  static auto of(std::int64_t expert, Pointer all, std::int64_t size) {
    using Element = std::conditional_t<std::is_same_v<Pointer, void*>, Real, const Real>;
    return all == nullptr ? nullptr : static_cast<Element*>(all) + expert * size;
  }
  ExpertWeights<Real> weightsOf(const LayerWeights& all, std::int64_t expert) const {
    return {of(expert, all.w1, matrix()), of(expert, all.b1, shape().localHidden),
            of(expert, all.w2, matrix()), of(expert, all.b2, shape().embedding)};
  }
  static ExpertWeights<Real> weightsOf(const MlpWeights& all) {
    return {static_cast<const Real*>(all.w1), static_cast<const Real*>(all.b1),
            static_cast<const Real*>(all.w2), static_cast<const Real*>(all.b2)};
  }
  ExpertGradients<Real> gradientsOf(const LayerGradients& all, std::int64_t expert) const {
    return {of(expert, all.w1, matrix()), of(expert, all.b1, shape().localHidden),
            of(expert, all.w2, matrix()), of(expert, all.b2, shape().embedding)};
  }

  std::vector<Wide<Real>> workspace_;  // of experts
  const gates::Gate<double> gate_;  // knows the loss, which does not depend on the layer's datatype
};

}  // namespace

std::unique_ptr<Compute> cpuCompute(const LayerShape& shape) {
  switch (shape.datatype) {
    case moecclFloat64:
      return std::make_unique<CpuCompute<double>>(shape);
    case moecclFloat16:
      return std::make_unique<CpuCompute<NarrowFloat16>>(shape);
    case moecclBfloat16:
      return std::make_unique<CpuCompute<NarrowBfloat16>>(shape);
    default:
      return std::make_unique<CpuCompute<float>>(shape);
  }
}

}  // namespace moeccl
