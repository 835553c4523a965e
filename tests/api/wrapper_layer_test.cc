// moeccl.hpp: layers.
#include <gtest/gtest.h>

#include <moeccl/moeccl.hpp>
#include <string>
#include <vector>

#include "tests/api/wrapper_ranks.h"

namespace {

using moeccl::Communicator;
using moeccl::MoeLayer;
using moeccl::test::asRanks;

constexpr int kTokens = 3, kWidth = 2;

moecclMoeConfig_t configOf(const Communicator& comm) {
  moecclMoeConfig_t config = MOECCL_MOE_CONFIG_INITIALIZER;
  config.tokens = kTokens;
  config.embedding = kWidth;
  config.hidden = kWidth;
  config.experts = comm.size();
  config.topK = comm.size();
  config.capacityFactor = 1;
  config.activation = moecclMoeRelu;
  config.datatype = moecclFloat32;
  config.training = 1;
  return config;
}

// Expert i multiplies its rows by i + 1; a gate of zeros gives both experts half of each token.
TEST(WrapperLayer, OwnsALayerAndForwardsItsCalls) {
  asRanks(2, [](Communicator& comm) {
    const moeccl::Grid grid(comm, {1, 2, 1, moecclOrderEspEp});
    MoeLayer layer(grid, configOf(comm));
    const moecclMoeShapes_t shapes = layer.shapes();
    ASSERT_EQ(shapes.localExperts, 1);
    EXPECT_EQ(shapes.firstExpert, comm.rank());
    const float factor = static_cast<float>(comm.rank() + 1);
    const std::vector<float> gate(kWidth * 2), w1 = {1, 0, 0, 1}, w2 = {factor, 0, 0, factor};
    const std::vector<float> input(kTokens * kWidth, factor), ones(input.size(), 1);
    std::vector<float> output(input.size()), ofInput(input.size()), ofW2(w2.size());
    EXPECT_THROW(layer.forward(input.data(), output.data()), moeccl::Error) << "no weights yet";
    moecclMoeWeights_t weights = MOECCL_MOE_WEIGHTS_INITIALIZER;
    weights.gate = gate.data();
    weights.w1 = w1.data();
    weights.w2 = w2.data();
    layer.setWeights(weights);
    moecclMoeGradients_t gradients = MOECCL_MOE_GRADIENTS_INITIALIZER;
    gradients.w2 = ofW2.data();
    layer.setGradients(gradients);
    layer.setStep(7);
    layer.setFirstBatch(0);
    const moeccl::Stream stream(comm);
    for (const moeccl::Stream* each : {static_cast<const moeccl::Stream*>(nullptr), &stream}) {
      layer.forward(input.data(), output.data(), each);
      EXPECT_EQ(output, std::vector<float>(input.size(), 1.5F * factor));
    }
    const std::vector<double> wide(input.size());
    EXPECT_THROW(layer.forward(wide.data(), output.data()), moeccl::Error) << "of float64";
    EXPECT_THROW(layer.backward(wide.data(), 0, ofInput.data()), moeccl::Error) << "of float64";
    layer.backward(ones.data(), 0, ofInput.data());
    EXPECT_EQ(ofInput, std::vector<float>(input.size(), 1.5F));
    // Half of each token of both ranks: 3 of 1, and 3 of 2.
    EXPECT_EQ(ofW2, std::vector<float>(w2.size(), 4.5F));
    const moecclMoeStats_t stats = layer.stats();
    EXPECT_EQ(stats.droppedChoices, 0);
    EXPECT_EQ(stats.assigned[1 - comm.rank()], kTokens);
    double bias[2] = {};
    EXPECT_THROW(layer.updateBias(bias, 0.1), moeccl::Error) << "the gate is no sigmoid";
  });
}

TEST(WrapperLayer, SavesAndRestoresItsSchedule) {
  asRanks(2, [](Communicator& comm) {
    const moeccl::Grid grid(comm, {1, 2, 1, moecclOrderEspEp});
    moecclMoeConfig_t config = configOf(comm);
    config.schedule = moecclScheduleS1;
    MoeLayer layer(grid, config);
    EXPECT_NE(layer.explain().find("S1"), std::string::npos) << layer.explain();
    const std::string saved = layer.save();
    layer.restore(saved);
    EXPECT_EQ(layer.save(), saved);
    EXPECT_THROW(layer.restore("no schedule"), moeccl::Error);
    MoeLayer moved = std::move(layer);
    EXPECT_EQ(moved.shapes().schedule, moecclScheduleS1);
  });
}

TEST(WrapperLayer, ThrowsWhatTheLibrarySays) {
  asRanks(1, [](Communicator& comm) {
    const moeccl::Grid grid(comm, {1, 1, 1, moecclOrderEspEp});
    moecclMoeConfig_t config = configOf(comm);
    config.topK = 2;
    try {
      const MoeLayer layer(grid, config);
      FAIL() << "nothing was thrown";
    } catch (const moeccl::Error& error) {
      EXPECT_EQ(error.result(), moecclInvalidArgument);
      EXPECT_NE(std::string(error.what()).find("topK"), std::string::npos) << error.what();
    }
  });
}

}  // namespace
