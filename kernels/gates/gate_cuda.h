// The gates of gate.h on a GPU: the same steps, rules, order of choices and places; exp and its kin
// may differ from the C library's in the last bit. All addresses are the GPU's, but where `Config`
// and `Part` say otherwise.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/blas_cuda.h"
#include "kernels/gates/gate.h"

namespace moeccl::cuda {

// Every kind of gate. Tokens, matrices, gradients of choices' weights and gradients that are added
// to are float32, float16 or bfloat16 (`datatype`), and computed with in float32; weights are
// float32. Calls put work on a stream and return; none allocates. They may share a workspace where
// they share a stream. All throw Error.
class Gate {
 public:
  // For parts of up to `tokens` tokens, in up to `groups` capacity groups. problem(config) must be
  // "".
  Gate(const gates::Config& config, moecclDataType_t datatype, std::int64_t tokens,
       std::int64_t groups);

  // Bytes of memory that begin at a multiple of 256.
  std::size_t workspaceBytes() const { return workspaceBytes_; }

  // forward is the first two, one after the other. sums may be null: not wanted.
  void computeLogits(const gates::Parameters<void>& parameters, const gates::Part<void>& part,
                     double* logits, void* stream) const;
  void choose(const gates::Parameters<void>& parameters, const gates::Part<void>& part,
              const gates::Decisions<float>& decisions, double* sums,
              std::span<std::byte> workspace, void* stream) const;
  void forward(const gates::Parameters<void>& parameters, const gates::Part<void>& part,
               const gates::Decisions<float>& decisions, double* sums,
               std::span<std::byte> workspace, void* stream) const;

  void place(std::int64_t tokens, std::int64_t groups, std::int32_t* chosen, float* weights,
             std::int64_t* used, std::int64_t* slots, double* factors, double* sums,
             std::span<std::byte> workspace, void* stream) const;

  // *loss is set where it is not null.
  void loss(const double* sums, double scale, double* dSums, double* loss, void* stream) const;

  void backward(const gates::Parameters<void>& parameters, const gates::Part<void>& part,
                const double* logits, const std::int32_t* chosen, const gates::Kept<float>& kept,
                const void* dWeights, const double* dSums, const gates::Gradients<void>& gradients,
                Blas& blas, std::span<std::byte> workspace, void* stream) const;

 private:
  // Where things are in the workspace.
  struct Memory {
    double* rowSums;
    std::byte* ofBlocks;
    float *dGate, *dNoise;    // [tokens][experts]
    float *staged, *dStaged;  // [some tokens][embedding], with jitter or narrow elements alone
    // Used with narrow elements alone, in float32: [embedding][experts] each, and [tokens][width].
    float *gate, *noise, *gateSums, *noiseSums, *dWeights;
    std::size_t bytes;
  };
  // A matrix that tokens are multiplied with, backward.
  struct Matrix {
    const float* dLogits;  // [tokens][experts]
    const float* weights;  // [embedding][experts]
    float* sums;           // the gradients of the weights are added to them; null: not wanted
  };

  bool isNarrow() const { return datatype_ != moecclFloat32; }
  Memory memory(std::byte* workspace) const;
  // The elements in float32: themselves, or widened in `room`.
  const float* widened(const void* from, std::int64_t count, float* room, void* stream) const;
  // The memory in which `wanted` is added up: itself, or zeroes in `room`.
  float* summed(void* wanted, std::int64_t count, float* room, void* stream) const;
  // Adds the products of `tokens` tokens, whose gradients of logits lie from `first` on, to dInput
  // and to the matrices' sums.
  void multiplyBackward(std::span<const Matrix> matrices, const float* input, std::int64_t tokens,
                        std::int64_t first, float* dInput, Blas& blas, void* stream) const;

  gates::Config config_;
  moecclDataType_t datatype_;
  std::int64_t tokens_;
  std::size_t workspaceBytes_;
};

}  // namespace moeccl::cuda
