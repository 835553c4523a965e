// Computes a layer's loss, experts and residual branch in the caller's thread, one expert at a
// time, and makes the routers of its gates.
#include "src/moe/compute_cpu.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "kernels/expert.h"
#include "src/moe/router_cpu.h"

namespace moeccl {
namespace {

template <typename Real>
class CpuCompute final : public HostCompute<Real, Compute> {
 public:
  explicit CpuCompute(const LayerShape& shape)
      : HostCompute<Real, Compute>(shape),
        workspace_(static_cast<std::size_t>(workspaceOf(shape))),
        gate_(shape.gate) {}

  using Compute::shape;

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

 private:
  static std::int64_t workspaceOf(const LayerShape& shape) {
    const std::int64_t hidden = std::max(shape.localHidden, shape.residual);
    const std::int64_t inner = shape.innerOf(hidden);
    if (kIsNarrow<Real>) return narrowExpertWorkspace(shape.embedding, hidden, inner);
    return shape.training ? expertBackwardWorkspace(inner) : expertWorkspace(inner);
  }

  // Calls function(expert, first element, rows).
  template <typename Function>
  void eachExpert(const ExpertRows& rows, Function function) const {
    for (std::int64_t i = 0; i < rows.experts(); ++i)
      function(rows.first + i, rows.begins[i] * shape().embedding,
               rows.begins[i + 1] - rows.begins[i]);
  }
  // One expert's array among those of all; null stays null.
  template <typename Pointer>
  static auto of(std::int64_t expert, Pointer all, std::int64_t size) {
    using Element = std::conditional_t<std::is_same_v<Pointer, void*>, Real, const Real>;
    return all == nullptr ? nullptr : static_cast<Element*>(all) + expert * size;
  }
  // One expert's part of all weights, or of all gradients.
  template <typename Made, typename All>
  Made partOf(const All& all, std::int64_t expert) const {
    const std::int64_t embedding = shape().embedding, hidden = shape().localHidden;
    const std::int64_t inner = shape().innerOf(hidden);
    return {of(expert, all.w1, embedding * inner), of(expert, all.b1, inner),
            of(expert, all.w2, hidden * embedding), of(expert, all.b2, embedding)};
  }
  ExpertWeights<Real> weightsOf(const LayerWeights& all, std::int64_t expert) const {
    return partOf<ExpertWeights<Real>>(all, expert);
  }
  static ExpertWeights<Real> weightsOf(const MlpWeights& all) {
    return {static_cast<const Real*>(all.w1), static_cast<const Real*>(all.b1),
            static_cast<const Real*>(all.w2), static_cast<const Real*>(all.b2)};
  }
  ExpertGradients<Real> gradientsOf(const LayerGradients& all, std::int64_t expert) const {
    return partOf<ExpertGradients<Real>>(all, expert);
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
