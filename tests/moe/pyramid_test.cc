// PR-MoE (DeepSpeed-MoE 4.1): layers with more and more experts, with a residual branch, one after
// another, on the grids that suit their experts; against the same of the reference.
#include <gtest/gtest.h>

#include <array>

#include "tests/moe/problem.h"

namespace moeccl::test {
namespace {

using moe_reference::decode;
using moe_reference::Elements;
using moe_reference::encode;
using moe_reference::Gradients;

constexpr double kAuxiliaryLossScale = 0.3;
constexpr int kLayers = 3;

// Four ranks in MP groups of two: the last layer's experts are not sharded, but spread over all
// ranks.
constexpr moecclGridShape_t kWide = {2, 2, 2, moecclOrderEspEp},
                            kFlat = {2, 4, 1, moecclOrderEspEp};

struct Storey {
  Problem problem;
  Solved solved;
  std::vector<Gradients> gradients;  // by batch; of experts' weights: of all batches
};

Problem storeyOf(std::int64_t experts, const moecclGridShape_t& grid, unsigned seed) {
  Problem problem;
  problem.name = "pyramid";
  problem.grid = grid;
  problem.experts = experts;
  problem.choices = 1;
  problem.tokens = 22;
  problem.residual = 9;
  problem.capacityFactor = 1.5;
  problem.datatype = moecclFloat64;
  problem.training = true;
  problem.seed = seed;
  return problem;
}

void add(std::vector<double>& sum, const std::vector<double>& summand) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += summand[i];
}

// Each takes what the one before has made, and the gradient of what the one behind has.
std::array<Storey, kLayers> pyramid(bool dropless) {
  std::array<Storey, kLayers> storeys{{{storeyOf(4, kWide, 1), {}, {}},
                                       {storeyOf(8, kWide, 2), {}, {}},
                                       {storeyOf(8, kFlat, 3), {}, {}}}};
  for (int i = 0; i < kLayers; ++i) {
    Storey& storey = storeys[i];
    storey.problem.dropless = dropless;
    storey.solved = solve(storey.problem);
    for (int batch = 0; batch < storey.problem.batches() && i > 0; ++batch) {
      std::vector<double>& input = storey.solved.inputs[batch];
      input = storeys[i - 1].solved.expected[batch].output;
      storey.solved.expected[batch] = moe_reference::forward(storey.solved.layer, input.data());
    }
  }
  for (int i = kLayers - 1; i >= 0; --i) {
    Storey& storey = storeys[i];
    for (int batch = 0; batch < storey.problem.batches(); ++batch) {
      const std::vector<double>& input = storey.solved.inputs[batch];
      const std::vector<double> ones(input.size(), 1.0);
      storey.gradients.push_back(moe_reference::backward(
          storey.solved.layer, input.data(),
          i == kLayers - 1 ? ones.data() : storeys[i + 1].gradients[batch].input.data(),
          kAuxiliaryLossScale));
    }
    for (auto Gradients::*weights : {&Gradients::w1, &Gradients::b2}) {
      add(storey.gradients[0].*weights, storey.gradients[1].*weights);
      storey.gradients[1].*weights = storey.gradients[0].*weights;
    }
  }
  return storeys;
}

class Layer {
 public:
  Layer(moecclGrid_t grid, const Storey& storey) {
    moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
    check(moecclMoeLayerCreate(grid, &storey.solved.layer.config, &layer_));
    check(moecclMoeLayerGetShapes(layer_, &shapes));
    shard_ = moe_reference::shardOf(storey.solved.layer, shapes);
    check(moecclMoeLayerSetWeights(layer_, &shard_.weights));
    for (const Gradients& gradients : storey.gradients)
      expected_.push_back(moe_reference::shardOf(storey.solved.layer, shapes, gradients));
    const auto zeros = [](const std::vector<double>& like) {
      return encode(moecclFloat64, std::vector<double>(like.size()));
    };
    gate_ = zeros(expected_[0].gate);
    w1_ = zeros(expected_[0].w1);
    b2_ = zeros(expected_[0].b2);
    residual_ = zeros(expected_[0].residualW2);
    moecclMoeGradients_t gradients = MOECCL_MOE_GRADIENTS_INITIALIZER;
    gradients.gate = gate_.data();
    gradients.w1 = w1_.data();
    gradients.b2 = b2_.data();
    gradients.residualW2 = residual_.data();
    check(moecclMoeLayerSetGradients(layer_, &gradients));
  }
  ~Layer() { moecclMoeLayerDestroy(layer_); }

  void forward(Elements& stream) {
    check(moecclMoeForward(layer_, stream.data(), stream.data(), nullptr));
  }
  void backward(Elements& stream) {
    check(moecclMoeBackward(layer_, stream.data(), kAuxiliaryLossScale, stream.data(), nullptr));
  }
  void expectLearned(int batch, const Elements& inputGradient) const {
    const Gradients& expected = expected_[batch];
    expectClose("input", inputGradient, expected.input);
    expectClose("gate", gate_, expected.gate);
    expectClose("w1", w1_, expected.w1);
    expectClose("b2", b2_, expected.b2);
    expectClose("residual w2", residual_, expected.residualW2);
  }

  static void expectClose(const char* name, const Elements& actual,
                          const std::vector<double>& expected) {
    EXPECT_LE(moe_reference::largestError(decode(moecclFloat64, actual), expected), 1e-9) << name;
  }

 private:
  moecclMoeLayer_t layer_ = nullptr;
  moe_reference::Shard shard_;
  std::vector<Gradients> expected_;  // by batch, the caller's shard
  Elements gate_, w1_, b2_, residual_;
};

class Pyramid : public testing::TestWithParam<bool> {};

TEST_P(Pyramid, LearnsOnTwoGridsAsTheReferenceDoes) {
  const std::array<Storey, kLayers> storeys = pyramid(GetParam());
  Job job;
  job.ranks = 4;
  runJob(job, [&](moecclComm_t comm, int rank) {
    moecclGrid_t wide = makeGrid(comm, kWide), flat = makeGrid(comm, kFlat);
    const int batch = rank / 2;
    {
      Layer layers[kLayers] = {{wide, storeys[0]}, {wide, storeys[1]}, {flat, storeys[2]}};
      Elements stream = encode(moecclFloat64, storeys[0].solved.inputs[batch]);
      for (int i = 0; i < kLayers; ++i) {
        SCOPED_TRACE("layer " + std::to_string(i) + ", rank " + std::to_string(rank));
        layers[i].forward(stream);
        Layer::expectClose("output", stream, storeys[i].solved.expected[batch].output);
      }
      stream =
          encode(moecclFloat64, std::vector<double>(storeys[0].solved.inputs[batch].size(), 1.0));
      for (int i = kLayers - 1; i >= 0; --i) {
        SCOPED_TRACE("layer " + std::to_string(i) + ", rank " + std::to_string(rank));
        layers[i].backward(stream);
        layers[i].expectLearned(batch, stream);
      }
    }
    check(moecclGridDestroy(flat));
    check(moecclGridDestroy(wide));
  });
}

INSTANTIATE_TEST_SUITE_P(, Pyramid, testing::Bool(),
                         [](const auto& info) { return info.param ? "Dropless" : "WithCapacity"; });

}  // namespace
}  // namespace moeccl::test
