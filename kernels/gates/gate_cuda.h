// The gates of gate.h on a GPU: the same steps, rules, order of choices and places; exp and its kin
// may differ from the C library's in the last bit. All addresses are the GPU's, but where `Config`
// and `Part` say otherwise.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/blas_cuda.h"
#include "kernels/gates/gate.h"

namespace moeccl::cuda {

// Every kind of gate, on float tokens. Calls put work on a stream and return; none allocates. They
// may share a workspace where they share a stream. All throw Error.
class Gate {
 public:
  // For parts of up to `tokens` tokens, in up to `groups` capacity groups. problem(config) must be
  // "".
  Gate(const gates::Config& config, std::int64_t tokens, std::int64_t groups);

  // Bytes of memory that begin at a multiple of 256.
  std::size_t workspaceBytes() const { return workspaceBytes_; }

  // forward is the first two, one after the other.
  void computeLogits(const gates::Parameters<float>& parameters, const gates::Part<float>& part,
                     double* logits, void* stream) const;
  void choose(const gates::Parameters<float>& parameters, const gates::Part<float>& part,
              const gates::Decisions<float>& decisions, double* sums,
              std::span<std::byte> workspace, void* stream) const;
  void forward(const gates::Parameters<float>& parameters, const gates::Part<float>& part,
               const gates::Decisions<float>& decisions, double* sums,
               std::span<std::byte> workspace, void* stream) const;

  void place(std::int64_t tokens, std::int64_t groups, std::int32_t* chosen, float* weights,
             std::int64_t* used, std::int64_t* slots, double* sums, std::span<std::byte> workspace,
             void* stream) const;

  // *loss is set where it is not null.
  void loss(const double* sums, double scale, double* dSums, double* loss, void* stream) const;

  void backward(const gates::Parameters<float>& parameters, const gates::Part<float>& part,
                const double* logits, const std::int32_t* chosen, const float* dWeights,
                const double* dSums, const gates::Gradients<float>& gradients, Blas& blas,
                std::span<std::byte> workspace, void* stream) const;

 private:
  // Where things are in the workspace.
  struct Memory {
    double* rowSums;
    std::byte* ofBlocks;
    float *dGate, *dNoise;        // [tokens][experts]
    float *jittered, *dJittered;  // [tokens][embedding], with jitter alone
    std::size_t bytes;
  };
  Memory memory(std::byte* workspace) const;

  gates::Config config_;
  std::int64_t tokens_;
  std::size_t workspaceBytes_;
};

}  // namespace moeccl::cuda
