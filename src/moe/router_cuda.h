// The router on a GPU, for float32, float16 or bfloat16.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "kernels/gates/gate_cuda.h"
#include "kernels/permute.h"
#include "src/route/compute.h"
#include "src/route/gpu_rows.h"
#include "src/route/router.h"

namespace moeccl {

// What the routers of a layer share, as they take turns: a workspace, and matrix products.
class GateMemory {
 public:
  // Both must outlive this.
  GateMemory(Compute& compute, cuda::Blas& blas) : compute_(compute), blas_(blas) {}

  void reserve(std::size_t bytes);
  std::span<std::byte> workspace() const {
    return {static_cast<std::byte*>(memory_.get()), bytes_};
  }
  cuda::Blas& blas() const { return blas_; }

 private:
  Compute& compute_;
  cuda::Blas& blas_;
  Memory memory_;
  std::size_t bytes_ = 0;
};

// Memory that routers have side by side, so that one launch lists the choices of all of them.
struct CudaLists {
  CudaLists(Compute& compute, GateMemory& memory, int routers, std::int64_t tokens);

  const int routers;
  Memory chosen;                     // [routers][tokens][choices]
  Memory begins, listed, positions;  // as listByExpert makes them
  Memory hostBegins;                 // [routers][experts + 1], on the host
};

class CudaRouter final : public GpuRouter<Router> {
 public:
  // Number `index` of those of the lists. `memory` must outlive this.
  CudaRouter(Compute& compute, GateMemory& memory, std::shared_ptr<CudaLists> lists, int index,
             std::int64_t tokens, bool keeps);

  void route(const GateWeights& gate, const std::optional<gates::Draw>& draw, const Tokens& tokens,
             const void* input, BatchSums* sums, moecclStream_t stream) override;
  void gateBackward(const GateWeights& gate, const void* weightGradients,
                    const double* sumGradients, const GateGradients& gradients, void* inputGradient,
                    moecclStream_t stream) override;

  // The sums to which the counts of its choices are to be added; null: nowhere. Given once for each
  // route.
  double* takeKept() { return std::exchange(kept_, nullptr); }
  // Lists the choices of all routers by expert; only the first router is asked. Returns the begins
  // on the host.
  const std::int64_t* list(const ExpertCounts& counts, moecclStream_t stream);

 private:
  // Before `count` tokens from firstToken on are gated.
  void begin(std::int64_t firstToken, std::int64_t count, const std::optional<gates::Draw>& draw);
  // Computes the logits of all the tokens.
  void computeLogits(const GateWeights& gate, const void* input, std::int64_t count,
                     moecclStream_t stream);
  // Chooses for `count` tokens more. sums may be null.
  void choose(const GateWeights& gate, const void* input, std::int64_t count, double* sums,
              moecclStream_t stream);
  // Gives places in `groups` capacity groups to what has been gated, and adds those given to
  // `sums`. Dropless, choices have no places: list() counts them.
  void place(std::int64_t groups, double* sums, moecclStream_t stream);
  template <typename T>
  static T* in(const Memory& memory) {
    return static_cast<T*>(memory.get());
  }
  Choices<float> choices() const {
    return {chosenExperts(), in<std::int64_t>(slots_), in<float>(weights_), tokens_,
            shape_.choices};
  }
  // Where its choices are among those of all: routers that are listed together have as many tokens.
  std::int64_t firstChoice() const { return index_ * count_ * shape_.choices; }
  std::int32_t* chosenExperts() const { return in<std::int32_t>(lists_->chosen) + firstChoice(); }

  Compute& compute_;
  GateMemory& memory_;
  const LayerShape shape_;
  const std::shared_ptr<CudaLists> lists_;
  const int index_;
  const bool keeps_;
  const cuda::Gate gate_;
  std::int64_t count_ = 0;   // tokens to be gated
  std::int64_t tokens_ = 0;  // that are
  std::int64_t firstToken_ = 0;
  std::optional<gates::Draw> draw_;
  double* kept_ = nullptr;  // where list() adds what it counts
  // On the GPU:
  Memory logits_;           // [tokens][logitsPerToken]
  Memory weights_, slots_;  // [tokens][choices]
  Memory factors_;          // [tokens], of a gate that renormalizes
  Memory used_;             // [groups][experts]
  Memory input_;            // [tokens][embedding]
};

}  // namespace moeccl
