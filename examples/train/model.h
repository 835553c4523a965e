// A character-level transformer whose blocks are causal attention and a MoE layer.
#pragma once

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
  std::int64_t blocks = 2, embedding = 64, heads = 8, hidden = 128, experts = 8, topK = 2;
  double capacityFactor = 1.25;
  std::int64_t context = 64;
  // Samples that an MP group takes through the model at once. The auxiliary loss and the capacity of experts
  // are about these, and would be others if they were about whatever share of the batch a group has.
  std::int64_t samples = 4;
  // Of the samples taken at once. A multiple of every N_MP that is to compute the same function.
  std::int64_t capacityGroups = 8;
  std::uint64_t seed = 1;

  std::int64_t tokens() const { return samples * context; }
};

// Sums over samples taken at once.
struct Outcome {
  double crossEntropy = 0;       // over tokens
  double auxiliaryLoss = 0;      // over blocks
  double dropped = 0;            // choices, over blocks
  std::vector<double> assigned;  // [blocks][experts] choices
  Outcome& operator+=(const Outcome& other);
};

class Model {
 public:
  // Collective. Throws std::invalid_argument, on all ranks alike.
  Model(const Team& team, Parameters& parameters, const ModelConfig& config,
        moecclSchedule_t schedule);

  // Forward and backward: adds to gradients those of lossScale x (cross entropy summed over tokens) +
  // auxiliaryScale x (auxiliary losses). `inputs` and `targets` are [samples][context], the same on all
  // ranks of the MP group. Collective.
  Outcome pass(const std::int32_t* inputs, const std::int32_t* targets, double lossScale,
               double auxiliaryScale);

  moecclSchedule_t schedule() const { return blocks_.front()->experts.schedule(); }

 private:
  struct Block {
    Block(const Team& team, Parameters& parameters, const std::string& name,
          const ModelConfig& config, const moecclMoeConfig_t& layer);
    LayerNorm beforeAttention;
    Attention attention;
    LayerNorm beforeExperts;
    Experts experts;
  };
  void embed(const std::int32_t* inputs);
  void embedBackward(const std::int32_t* inputs);
  void forward(Block& block);
  void backward(Block& block, double auxiliaryScale);
  double outputBothWays(const std::int32_t* targets, double lossScale);

  ModelConfig config_;
  const Parameter &characters_, &places_;
  std::vector<std::unique_ptr<Block>> blocks_;
  LayerNorm beforeOutput_;
  const Parameter& output_;
  // [tokens][embedding]: what blocks add to, then its gradient; and one layer's input and output.
  std::vector<float> stream_, in_, out_;
  std::vector<float> logits_;  // [tokens][characters]
};

}  // namespace train
