// A character-level transformer whose blocks are causal attention and a MoE layer: one stage's part
// of it, with room for the samples of one pass.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "attention.h"
#include "dense.h"
#include "experts.h"

namespace train {

// Together with the seed this is the function, whatever ranks and grid compute it.
struct ModelConfig {
  std::int64_t characters = 0;  // different ones
  std::int64_t blocks = 2, embedding = 64, heads = 8, hidden = 128, topK = 2;
  std::vector<std::int64_t> experts = {
      8};  // block by block; the last number for all that follow, too
  std::int64_t residual =
      0;  // hidden units of an expert that all tokens pass, in each block; 0: none
  double capacityFactor = 1.25;
  std::int64_t context = 64;
  // Samples that an MP group takes through the model at once. The auxiliary loss and the capacity
  // of experts are about these, and would be others if they were about whatever share of the batch
  // a group has.
  std::int64_t samples = 4;
  // Of the samples taken at once. A multiple of every N_MP that is to compute the same function.
  std::int64_t capacityGroups = 8;
  std::uint64_t seed = 1;
  bool learn = false;  // MoE layers change their schedule as they learn of the cluster

  std::int64_t tokens() const { return samples * context; }
  std::int64_t expertsOf(std::int64_t block) const {
    return experts[std::min(static_cast<std::size_t>(block), experts.size() - 1)];
  }
};

// Sums over passes, of what a stage knows: the cross entropy is the last one's.
struct Outcome {
  double crossEntropy = 0;       // over tokens
  double divergence = 0;         // from the teacher, over tokens; of the last stage
  double auxiliaryLoss = 0;      // over blocks
  double dropped = 0;            // choices, over blocks
  std::vector<double> assigned;  // choices of each expert, those of the first block first
  Outcome& operator+=(const Outcome& other);
};

class Model {
 public:
  // Collective. Throws std::invalid_argument, on all ranks alike.
  Model(const Team& team, Parameters& parameters, const ModelConfig& config,
        moecclSchedule_t schedule);

  // After Parameters::allocate(). Of models that share parameters one initialises them, and all
  // bind theirs.
  void initialise(Parameters& parameters) const;
  void bind() const;

  // [tokens][embedding], the same on all ranks of the MP group: what the blocks add to. The stage
  // before fills it ahead of forward, the stage behind with its gradient ahead of backward.
  std::vector<Real>& stream() { return stream_; }

  // `inputs` are the first stage's and `lesson` the last one's, of [samples][context] tokens, the
  // same on all ranks of the MP group. Collective over the stage.
  Outcome forward(const std::int32_t* inputs, const Lesson& lesson, double lossScale);
  // Of the last forward: adds to gradients those of lossScale x (losses summed over tokens) +
  // auxiliaryScale x (auxiliary losses). Collective over the stage.
  void backward(const std::int32_t* inputs, double auxiliaryScale);

  // What the model, which is one stage, expects to follow: [tokens][characters], valid until the
  // next call. Collective.
  const Real* probabilities(const std::int32_t* inputs);

  // Of each of its blocks.
  std::vector<moecclSchedule_t> schedules() const;
  std::vector<Experts*> layers();

 private:
  struct Block {
    Block(const Team& team, Parameters& parameters, const ModelConfig& config, std::int64_t number,
          moecclSchedule_t schedule);
    LayerNorm beforeAttention;
    Attention attention;
    LayerNorm beforeExperts;
    Experts experts;
  };
  void embed(const std::int32_t* inputs);
  void embedBackward(const std::int32_t* inputs);
  void forward(Block& block);
  void backward(Block& block, double auxiliaryScale);
  void output();
  void outputBackward();

  ModelConfig config_;
  std::int64_t firstBlock_;
  const Parameter *characters_ = nullptr, *places_ = nullptr;  // the first stage's
  std::vector<std::unique_ptr<Block>> blocks_;
  std::unique_ptr<LayerNorm> beforeOutput_;  // the last stage's, like:
  const Parameter* output_ = nullptr;
  // [tokens][embedding]: the stream, and one layer's input and output.
  std::vector<Real> stream_, in_, out_;
  std::vector<Real> logits_;  // [tokens][characters]
};

}  // namespace train
