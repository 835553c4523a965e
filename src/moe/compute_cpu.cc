#include "src/moe/compute_cpu.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <type_traits>
#include <vector>

#include "kernels/copy.h"
#include "kernels/expert.h"
#include "src/moe/router_cpu.h"

namespace moeccl {
namespace {

template <typename Real>
class CpuCompute final : public Compute {
 public:
  explicit CpuCompute(const LayerShape& shape)
      : Compute(shape),
        workspace_(static_cast<std::size_t>(
            shape.training ? expertBackwardWorkspace(std::max(shape.localHidden, shape.residual))
                           : expertWorkspace(std::max(shape.localHidden, shape.residual)))) {}

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

  void zero(void* to, std::int64_t count, moecclStream_t) override {
    std::fill_n(static_cast<Real*>(to), count, Real{0});
  }
  void copy(void* to, const void* from, std::int64_t count, moecclStream_t) override {
    std::copy_n(static_cast<const Real*>(from), count, static_cast<Real*>(to));
  }
  void add(void* to, const void* from, std::int64_t count, moecclStream_t) override {
    Real* const sum = static_cast<Real*>(to);
    const Real* const summand = static_cast<const Real*>(from);
    for (std::int64_t i = 0; i < count; ++i) sum[i] += summand[i];
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

  void expertForward(const LayerWeights& weights, std::int64_t expert, std::int64_t count,
                     const void* tokens, void* results, moecclStream_t) override {
    moeccl::expertForward<Real>(shape().activation, weightsOf(weights, expert), shape().embedding,
                                shape().localHidden, static_cast<const Real*>(tokens), count,
                                workspace_, static_cast<Real*>(results));
  }
  void expertBackward(const LayerWeights& weights, const LayerGradients& gradients,
                      std::int64_t expert, std::int64_t count, const void* tokens,
                      void* rowGradients, moecclStream_t) override {
    Real* const rows = static_cast<Real*>(rowGradients);
    moeccl::expertBackward<Real>(shape().activation, weightsOf(weights, expert), shape().embedding,
                                 shape().localHidden, static_cast<const Real*>(tokens), rows, count,
                                 workspace_, gradientsOf(gradients, expert), rows);
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

  std::unique_ptr<Router> router(std::int64_t tokens, bool keeps) override {
    return std::make_unique<CpuRouter<Real>>(shape(), tokens, keeps);
  }

 private:
  std::int64_t matrix() const { return shape().embedding * shape().localHidden; }

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

  std::vector<Real> workspace_;  // of experts
};

}  // namespace

std::unique_ptr<Compute> cpuCompute(const LayerShape& shape) {
  if (shape.datatype == moecclFloat64) return std::make_unique<CpuCompute<double>>(shape);
  return std::make_unique<CpuCompute<float>>(shape);
}

}  // namespace moeccl
