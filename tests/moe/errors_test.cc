// Each wrong argument of each function of moe.h: its result code, and what its message names.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <functional>
#include <limits>
#include <ostream>

#include "moeccl/model.h"
#include "moeccl/moe.h"
#include "tests/api/ranks.h"

namespace moeccl::test {
namespace {

// Nor would it be one if two were added.
constexpr auto kNoSchedule = static_cast<moecclSchedule_t>(moecclNumSchedules + 2);

moecclMoeConfig_t rightConfig() {
  moecclMoeConfig_t config = MOECCL_MOE_CONFIG_INITIALIZER;
  config.tokens = 8;
  config.embedding = 4;
  config.hidden = 6;
  config.experts = 4;
  config.topK = 2;
  config.capacityFactor = 1.0;
  return config;
}

// Runs `body` on every rank of a grid with nMp 2, nEp 2, nEsp 2.
void onGrid(const std::function<void(moecclGrid_t grid, int rank)>& body) {
  Job job;
  job.ranks = 4;
  runJob(job, [&](moecclComm_t comm, int rank) {
    moecclGrid_t grid = makeGrid(comm, {2, 2, 2, moecclOrderEspEp});
    body(grid, rank);
    check(moecclGridDestroy(grid));
  });
}

using Parts = std::vector<std::string>;

void expectRefused(moecclGrid_t grid, const std::function<void(moecclMoeConfig_t&)>& spoil,
                   const Parts& parts, moecclResult_t expected = moecclInvalidArgument) {
  moecclMoeConfig_t config = rightConfig();
  spoil(config);
  moecclMoeLayer_t layer = nullptr;
  const moecclResult_t result = moecclMoeLayerCreate(grid, &config, &layer);
  Parts all = parts;
  all.push_back("moecclMoeLayerCreate");
  checkError(result, expected, nullptr, all);
  checkThat(layer == nullptr, "a layer in spite of the error");
}

using Config = moecclMoeConfig_t&;
using Spoil = std::function<void(Config, int rank)>;

// What is wrong with a config, on all ranks or on one, and what the message says.
struct Wrong {
  const char* name;
  Spoil spoil;
  Parts parts;
  moecclResult_t result = moecclInvalidArgument;
};
void PrintTo(const Wrong& wrong, std::ostream* out) {
  *out << wrong.name << ':';
  for (const std::string& part : wrong.parts) *out << " \"" << part << '"';
}

Spoil withGate(moecclMoeGate_t gate, const Spoil& spoil) {
  return [=](Config c, int rank) {
    c.gate = gate;
    spoil(c, rank);
  };
}
Spoil dropless(const Spoil& spoil) {
  return [=](Config c, int rank) {
    c.dropless = 1;
    c.capacityFactor = 0;
    spoil(c, rank);
  };
}
template <typename Gate, typename Field, typename Value>
Spoil set(Gate moecclMoeConfig_t::*gate, Field Gate::*field, Value value) {
  return [=](moecclMoeConfig_t& config, int) { config.*gate.*field = static_cast<Field>(value); };
}
template <typename Field, typename Value>
Spoil set(Field moecclMoeConfig_t::*field, Value value) {
  return [=](Config c, int) { c.*field = static_cast<Field>(value); };
}
Spoil both(const Spoil& one, const Spoil& other) {
  return [=](Config c, int rank) {
    one(c, rank);
    other(c, rank);
  };
}
// Only where the rank is `alone`.
template <typename Field, typename Value>
Spoil setOn(int alone, Field moecclMoeConfig_t::*field, Value there, Value elsewhere) {
  return
      [=](Config c, int rank) { c.*field = static_cast<Field>(rank == alone ? there : elsewhere); };
}

using C = moecclMoeConfig_t;
const double kNan = std::nan(""), kInfinity = std::numeric_limits<double>::infinity();

std::vector<Wrong> wrongFields() {
  return {
      {"TokensBelowZero", set(&C::tokens, -1), {"config.tokens is -1", "at least 0"}},
      {"TokensAtTheLimit", set(&C::tokens, INT64_MAX), {"config.tokens"}},
      {"TokensBeyondMemory", set(&C::tokens, INT64_MAX / 4), {"address space"}},
      // What experts choose from comes first.
      {"TokensOfExpertsBeyondMemory",
       withGate(moecclGateExpertChoice,
                both(set(&C::tokens, INT64_MAX / 2), set(&C::schedule, moecclScheduleS2))),
       {"address space"}},
      {"NoEmbedding", set(&C::embedding, 0), {"config.embedding is 0", "from 1"}},
      {"LargeEmbedding", set(&C::embedding, 1ll << 31), {"config.embedding", "2147483647"}},
      {"NoHidden", set(&C::hidden, 0), {"config.hidden is 0", "from 1"}},
      {"OddHidden", set(&C::hidden, 7), {"config.hidden is 7", "nEsp, 2"}},
      {"NoExperts", set(&C::experts, 0), {"config.experts is 0", "from 1"}},
      {"OddExperts", set(&C::experts, 5), {"config.experts is 5", "nEp, 2"}},
      {"NoChoices", set(&C::topK, 0), {"config.topK is 0", "from 1 to 4"}},
      {"ManyChoices", set(&C::topK, 5), {"config.topK is 5", "from 1 to 4"}},
      {"NoCapacity", set(&C::capacityFactor, 0.0), {"config.capacityFactor is", "above 0"}},
      {"NegativeCapacity", set(&C::capacityFactor, -1.0), {"config.capacityFactor is", "above 0"}},
      {"CapacityNan", set(&C::capacityFactor, kNan), {"config.capacityFactor is", "above 0"}},
      {"CapacityInfinite",
       set(&C::capacityFactor, kInfinity),
       {"config.capacityFactor is", "above 0"}},
      {"NegativeGroups", set(&C::capacityGroups, -2), {"config.capacityGroups is -2"}},
      {"GroupsThatPartsCut",
       both(set(&C::capacityGroups, 3), set(&C::schedule, moecclScheduleS1)),
       {"config.capacityGroups is 3", "S1", "nMp, 2"}},
      {"Activation",
       set(&C::activation, moecclMoeNumActivations),
       {"config.activation is 3", "moecclMoeRelu"}},
      {"Datatype",
       set(&C::datatype, moecclInt32),
       {"config.datatype is 2", "moecclFloat32 (7), moecclFloat64 (8), moecclFloat16 (6)"}},
      {"Schedule",
       set(&C::schedule, kNoSchedule),
       {"config.schedule is 7", "from 0 to ", "S1, S2"}},
      {"PpMoeOnPartOfTheRanks",
       set(&C::schedule, moecclSchedulePpMoe),
       {"config.schedule is 4", "PPMoE", "nMp is 2", "nEp * nEsp, 4"}},
      {"NegativeChunks", set(&C::chunks, -1), {"config.chunks is -1", "0"}},
      // No other schedule reads them.
      {"ChunksThatDoNotDivide",
       both(set(&C::schedule, moecclScheduleS1),
            both(set(&C::capacityGroups, 8), set(&C::chunks, 3))),
       {"config.chunks is 3", "divide capacityGroups / nMp, 4"}},
      {"NegativeResidual", set(&C::residual, -1), {"config.residual is -1", "from 0"}},
      {"Learn", set(&C::learn, 2), {"config.learn is 2", "0 or 1"}},
      {"Dropless", set(&C::dropless, 2), {"config.dropless is 2", "0 or 1"}},
      {"DroplessWithCapacity",
       set(&C::dropless, 1),
       {"config.capacityFactor is 1;", "dropless", "must be 0"}},
      {"DroplessWithGroups",
       dropless(set(&C::capacityGroups, 2)),
       {"config.capacityGroups is 2", "dropless", "must be 0"}},
      {"DroplessWithLeastCapacity",
       dropless(set(&C::minCapacity, 4)),
       {"config.minCapacity is 4", "dropless layer has no capacity"}},
      {"DroplessRenormalized", dropless(set(&C::renormalize, 1)), {"config.renormalize is 1"}},
      {"DroplessInChunks", dropless(set(&C::chunks, 65)), {"config.chunks is 65", "0 to 64"}},
      {"DroplessExpertChoice",
       dropless(set(&C::gate, moecclGateExpertChoice)),
       {"config.dropless is 1", "0 with moecclGateExpertChoice"}},
      {"DroplessS2",
       dropless(set(&C::schedule, moecclScheduleS2)),
       {"config.schedule is 3", "S2 splits the capacity"}},
      {"TokenRouting", set(&C::tokenRouting, 2), {"config.tokenRouting is 2", "-1 to 1"}},
      {"TokenRoutingWithCapacity",
       set(&C::tokenRouting, 1),
       {"config.tokenRouting is 1", "a layer with a capacity", "must be 0"}},
      {"TokenRoutingOfFloat64",
       dropless(both(set(&C::tokenRouting, 1), set(&C::datatype, moecclFloat64))),
       {"config.tokenRouting is 1", "no float64", "0 or -1"}},
      {"TokenRoutingOfManyExperts",
       dropless(both(set(&C::tokenRouting, 1), set(&C::experts, 40000))),
       {"config.tokenRouting is 1", "32768 experts", "0 or -1"}},
      {"Training", set(&C::training, 2), {"config.training is 2", "0 or 1"}},
      {"Gate", set(&C::gate, moecclNumGates), {"config.gate is 6", "moecclGateSigmoid (5)"}},
      {"NoMagic",
       set(&C::magic, 0),
       {"config was not initialised", "MOECCL_MOE_CONFIG_INITIALIZER"}},
      {"SmallSize", set(&C::size, 8), {"config was not initialised"}},
      {"NoVersion", set(&C::version, 0), {"config was not initialised"}},
      {"LaterVersion", set(&C::version, 990000), {"config comes from", "99"}},
  };
}

std::vector<Wrong> wrongFieldsOfGates() {
  const Spoil one = set(&C::topK, 1);
  std::vector<Wrong> table = {
      {"SwitchOfTwo",
       withGate(moecclGateSwitch, [](Config, int) {}),
       {"config.topK is 2", "1 with moecclGateSwitch"}},
      {"GShardOfThree",
       withGate(moecclGateGShard, set(&C::topK, 3)),
       {"config.topK is 3", "2 with moecclGateGShard"}},
      {"NegativeJitter",
       withGate(moecclGateSwitch,
                both(one, set(&C::switchGate, &moecclSwitchGate_t::jitter, -0.5))),
       {"config.switchGate.jitter is", "from 0 to 1"}},
      {"LargeJitter",
       withGate(moecclGateSwitch, both(one, set(&C::switchGate, &moecclSwitchGate_t::jitter, 1.5))),
       {"config.switchGate.jitter is", "from 0 to 1"}},
      {"JitterNan",
       withGate(moecclGateSwitch,
                both(one, set(&C::switchGate, &moecclSwitchGate_t::jitter, kNan))),
       {"config.switchGate.jitter is", "from 0 to 1"}},
      {"JitterOfSoftmax",
       withGate(moecclGateSoftmax, set(&C::switchGate, &moecclSwitchGate_t::jitter, 0.5)),
       {"config.switchGate.jitter is 0.5; it must be 0 with moecclGateSoftmax",
        "moecclGateSwitch alone"}},
      {"NegativeImportance",
       withGate(moecclGateNoisyTopK,
                set(&C::noisyTopK, &moecclNoisyTopKGate_t::importanceWeight, -1)),
       {"config.noisyTopK.importanceWeight is -1", "0 or more"}},
      {"InfiniteLoad",
       withGate(moecclGateNoisyTopK,
                set(&C::noisyTopK, &moecclNoisyTopKGate_t::loadWeight, kInfinity)),
       {"config.noisyTopK.loadWeight is inf", "finite"}},
      {"ExpertGroupsThatDoNotDivide",
       withGate(moecclGateSigmoid, set(&C::sigmoid, &moecclSigmoidGate_t::expertGroups, 3)),
       {"config.sigmoid.expertGroups is 3", "divisor of the number of experts, 4"}},
      {"NegativeExpertGroups",
       withGate(moecclGateSigmoid, set(&C::sigmoid, &moecclSigmoidGate_t::expertGroups, -1)),
       {"config.sigmoid.expertGroups is -1", "from 0 to the number of experts, 4"}},
      {"ManyTopGroups",
       withGate(moecclGateSigmoid, set(&C::sigmoid, &moecclSigmoidGate_t::topGroups, 1ll << 40)),
       {"config.sigmoid.topGroups is 1099511627776", "from 0"}},
      {"MoreTopGroupsThanGroups",
       withGate(moecclGateSigmoid, both(set(&C::sigmoid, &moecclSigmoidGate_t::expertGroups, 2),
                                        set(&C::sigmoid, &moecclSigmoidGate_t::topGroups, 3))),
       {"config.sigmoid.topGroups is 3", "from 1 to expertGroups, 2"}},
      {"TopGroupsOfFewExperts",
       withGate(moecclGateSigmoid, both(set(&C::sigmoid, &moecclSigmoidGate_t::expertGroups, 4),
                                        set(&C::sigmoid, &moecclSigmoidGate_t::topGroups, 1))),
       {"config.topK is 2", "topGroups groups, 1"}},
      {"NegativeRoutingScale",
       withGate(moecclGateSigmoid, set(&C::sigmoid, &moecclSigmoidGate_t::routingScale, -2)),
       {"config.sigmoid.routingScale is -2", "above 0"}},
      {"NegativeSequence",
       withGate(moecclGateSigmoid, set(&C::sigmoid, &moecclSigmoidGate_t::sequenceTokens, -1)),
       {"config.sigmoid.sequenceTokens is -1", "at least 0"}},
  };
  const std::pair<const char*, Spoil> ofExpertChoice[] = {
      {"ExpertGroupsOfExpertChoice", set(&C::sigmoid, &moecclSigmoidGate_t::expertGroups, 1)},
      {"TopGroupsOfExpertChoice", set(&C::sigmoid, &moecclSigmoidGate_t::topGroups, 1)},
      {"SequenceOfExpertChoice", set(&C::sigmoid, &moecclSigmoidGate_t::sequenceTokens, 1)}};
  for (const auto& [name, spoil] : ofExpertChoice)
    table.push_back(
        {name,
         withGate(moecclGateExpertChoice, spoil),
         {"is 1; it must be 0 with moecclGateExpertChoice", "moecclGateSigmoid alone"}});
  const std::pair<const char*, Spoil> ofGShard[] = {
      {"ImportanceOfGShard", set(&C::noisyTopK, &moecclNoisyTopKGate_t::importanceWeight, 0.5)},
      {"LoadOfGShard", set(&C::noisyTopK, &moecclNoisyTopKGate_t::loadWeight, 0.5)},
      {"RoutingScaleOfGShard", set(&C::sigmoid, &moecclSigmoidGate_t::routingScale, 0.5)}};
  for (const auto& [name, spoil] : ofGShard)
    table.push_back({name,
                     withGate(moecclGateGShard, spoil),
                     {"is 0.5; it must be 0 with moecclGateGShard", "alone reads it"}});
  table.push_back(
      {"RenormalizeTwice", set(&C::renormalize, 2), {"config.renormalize is 2", "0 or 1"}});
  table.push_back({"RenormalizeExpertChoice",
                   withGate(moecclGateExpertChoice, set(&C::renormalize, 1)),
                   {"config.renormalize is 1", "drop nothing"}});
  table.push_back(
      {"LeastCapacityBelowZero", set(&C::minCapacity, -1), {"config.minCapacity is -1", "0"}});
  return table;
}

std::vector<Wrong> configsThatDiffer() {
  constexpr moecclResult_t kUsage = moecclInvalidUsage;
  return {
      {"Schedule",
       setOn(1, &C::schedule, moecclScheduleS2, moecclScheduleS1),
       {"different configs", "MOECCL_SCHEDULE) is S1 on rank 0 and S2 on rank 1"},
       kUsage},
      {"LastBitOfCapacity",
       setOn(3, &C::capacityFactor, std::nextafter(1.25, 2), 1.25),
       {"capacityFactor is 1.25 on rank 0 and 1.2500000000000002 on rank 3"},
       kUsage},
      {"Datatype",
       setOn(1, &C::datatype, moecclFloat16, moecclFloat32),
       {"different configs", "datatype is float32 on rank 0 and float16 on rank 1"},
       kUsage},
      {"Hidden",
       setOn(2, &C::hidden, 12, 6),
       {"different configs", "hidden is 6 on rank 0 and 12 on rank 2"},
       kUsage},
      {"Capacity",
       setOn(3, &C::capacityFactor, 1.5, 1.0),
       {"capacityFactor is 1 on rank 0 and 1.5 on rank 3"},
       kUsage},
      {"Training",
       setOn(1, &C::training, 1, 0),
       {"training is 0 on rank 0 and 1 on rank 1"},
       kUsage},
      {"Chunks", setOn(1, &C::chunks, 1, 0), {"chunks is 0 on rank 0 and 1 on rank 1"}, kUsage},
      {"Seed",
       [](Config c, int rank) { c.seed = rank; },
       {"seed is 0 on rank 0 and 1 on rank 1"},
       kUsage},
      {"Residual",
       setOn(3, &C::residual, 4, 0),
       {"residual is 0 on rank 0 and 4 on rank 3"},
       kUsage},
      {"LearnOnOneRank",
       setOn(1, &C::learn, 1, 0),
       {"learn is 0 on rank 0 and 1 on rank 1"},
       kUsage},
      {"Dropless",
       setOn(2, &C::dropless, 1, 0),
       {"dropless is 0 on rank 0 and 1 on rank 2"},
       kUsage},
      {"TokenRouting",
       setOn(2, &C::tokenRouting, 1, -1),
       {"tokenRouting is -1 on rank 0 and 1 on rank 2"},
       kUsage},
      {"Gate",
       setOn(1, &C::gate, moecclGateSigmoid, moecclGateSoftmax),
       {"gate is moecclGateSoftmax on rank 0 and moecclGateSigmoid on rank 1"},
       kUsage},
      {"Activation",
       setOn(2, &C::activation, moecclMoeSwiglu, moecclMoeRelu),
       {"activation is moecclMoeRelu on rank 0 and moecclMoeSwiglu on rank 2"},
       kUsage},
      {"WrongActivation",
       setOn(2, &C::activation, static_cast<moecclMoeActivation_t>(3), moecclMoeGelu),
       {"activation is moecclMoeGelu on rank 0 and 3 on rank 2"},
       kUsage},
      // One that is wrong by itself too: nobody waits for that rank.
      {"WrongTokens",
       setOn(1, &C::tokens, -1, 8),
       {"tokens is 8 on rank 0 and -1 on rank 1"},
       kUsage},
  };
}

class MoeErrorsOf : public testing::TestWithParam<Wrong> {};

TEST_P(MoeErrorsOf, AConfigSayWhatIsWrong) {
  const Wrong& wrong = GetParam();
  onGrid([&](moecclGrid_t grid, int rank) {
    expectRefused(
        grid, [&](Config config) { wrong.spoil(config, rank); }, wrong.parts, wrong.result);
  });
}

const auto nameOfWrong = [](const auto& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(Fields, MoeErrorsOf, testing::ValuesIn(wrongFields()), nameOfWrong);
INSTANTIATE_TEST_SUITE_P(FieldsOfGates, MoeErrorsOf, testing::ValuesIn(wrongFieldsOfGates()),
                         nameOfWrong);
INSTANTIATE_TEST_SUITE_P(ConfigsThatDiffer, MoeErrorsOf, testing::ValuesIn(configsThatDiffer()),
                         nameOfWrong);

// Questions about schedules are remembered; not so far that a gate that does not fit goes
// unnoticed.
TEST(MoeErrors, FieldsOfGatesInQuestions) {
  onGrid([](moecclGrid_t grid, int) {
    moecclMoeConfig_t config = rightConfig();
    moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
    cluster.grid = grid;
    moecclQuery_t query = MOECCL_QUERY_INITIALIZER;
    query.cluster = &cluster;
    query.layer = &config;
    moecclChoices_t choices = nullptr;
    check(moecclSelect(&query, &choices, nullptr));
    check(moecclChoicesDestroy(choices));
    config.residual = -1;
    checkError(moecclSelect(&query, &choices, nullptr), moecclInvalidArgument, nullptr,
               {"config.residual is -1"});
    config.residual = 0;
    config.gate = moecclGateSwitch;
    checkError(moecclSelect(&query, &choices, nullptr), moecclInvalidArgument, nullptr,
               {"moecclSelect: config.topK is 2", "moecclGateSwitch"});
  });
}

TEST(MoeErrors, WeightsOfGates) {
  onGrid([](moecclGrid_t grid, int) {
    const auto refused = [](moecclResult_t result, const Parts& parts,
                            moecclResult_t expected = moecclInvalidArgument) {
      checkError(result, expected, nullptr, parts);
    };
    std::vector<float> numbers(1000);
    std::vector<double> bias(4);
    for (int gate = 0; gate < moecclNumGates; ++gate) {
      moecclMoeConfig_t config = rightConfig();
      config.gate = static_cast<moecclMoeGate_t>(gate);
      config.topK = gate == moecclGateSwitch ? 1 : 2;
      config.training = 1;
      moecclMoeLayer_t layer = nullptr;
      check(moecclMoeLayerCreate(grid, &config, &layer));
      moecclMoeWeights_t weights = MOECCL_MOE_WEIGHTS_INITIALIZER;
      weights.gate = weights.w1 = weights.w2 = numbers.data();
      moecclMoeGradients_t gradients = MOECCL_MOE_GRADIENTS_INITIALIZER;
      gradients.noise = numbers.data();
      if (gate == moecclGateNoisyTopK) {
        refused(moecclMoeLayerSetWeights(layer, &weights), {"weights.noise is NULL", "[M][E]"});
        check(moecclMoeLayerSetGradients(layer, &gradients));
        weights.noise = numbers.data();
        check(moecclMoeLayerSetWeights(layer, &weights));
      } else {
        weights.noise = numbers.data();
        refused(moecclMoeLayerSetWeights(layer, &weights), {"weights.noise is set", "NULL"});
        refused(moecclMoeLayerSetGradients(layer, &gradients), {"gradients.noise is set"});
        weights.noise = nullptr;
      }
      weights.bias = bias.data();
      if (gate == moecclGateSigmoid) {
        check(moecclMoeLayerSetWeights(layer, &weights));
        refused(moecclMoeUpdateBias(nullptr, bias.data(), 0.1), {"layer is NULL"});
        refused(moecclMoeUpdateBias(layer, nullptr, 0.1), {"moecclMoeUpdateBias: bias is NULL"});
        for (double speed : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()})
          refused(moecclMoeUpdateBias(layer, bias.data(), speed), {"speed is", "0 or more"});
      } else {
        refused(moecclMoeLayerSetWeights(layer, &weights), {"weights.bias is set", "NULL"});
        refused(moecclMoeUpdateBias(layer, bias.data(), 0.1), {"moecclGateSigmoid"},
                moecclInvalidUsage);
      }
      refused(moecclMoeLayerSetStep(nullptr, 1), {"moecclMoeLayerSetStep: layer is NULL"});
      refused(moecclMoeLayerSetStep(layer, -1), {"step is -1", "0 or more"});
      refused(moecclMoeLayerSetFirstBatch(nullptr, 1),
              {"moecclMoeLayerSetFirstBatch: layer is NULL"});
      refused(moecclMoeLayerSetFirstBatch(layer, -1), {"firstBatch is -1", "0 or more"});
      check(moecclMoeLayerDestroy(layer));
    }
    const moecclMoeConfig_t config = rightConfig();
    moecclMoeLayer_t layer = nullptr;
    check(moecclMoeLayerCreate(grid, &config, &layer));
    refused(moecclMoeLayerSetStep(layer, 1), {"config.training 1"}, moecclInvalidUsage);
    refused(moecclMoeLayerSetFirstBatch(layer, 1), {"config.training 1"}, moecclInvalidUsage);
    check(moecclMoeLayerDestroy(layer));
  });
}

TEST(MoeErrors, WeightsOfTheResidualBranch) {
  onGrid([](moecclGrid_t grid, int) {
    std::vector<float> numbers(1000);
    for (std::int64_t residual : {0, 3}) {
      moecclMoeConfig_t config = rightConfig();
      config.training = 1;
      config.residual = residual;
      moecclMoeLayer_t layer = nullptr;
      check(moecclMoeLayerCreate(grid, &config, &layer));
      moecclMoeWeights_t weights = MOECCL_MOE_WEIGHTS_INITIALIZER;
      weights.gate = weights.w1 = weights.w2 = numbers.data();
      moecclMoeGradients_t gradients = MOECCL_MOE_GRADIENTS_INITIALIZER;
      gradients.residualB2 = numbers.data();
      const auto refused = [](moecclResult_t result, const Parts& parts) {
        checkError(result, moecclInvalidArgument, nullptr, parts);
      };
      if (residual == 0) {
        weights.residualB1 = numbers.data();
        refused(moecclMoeLayerSetWeights(layer, &weights),
                {"weights.residualB1 is set", "NULL", "config.residual is 0"});
        refused(moecclMoeLayerSetGradients(layer, &gradients),
                {"gradients.residualB2 is set", "NULL"});
      } else {
        refused(moecclMoeLayerSetWeights(layer, &weights),
                {"weights.residualW1 is NULL", "[M][R]"});
        weights.residualW1 = numbers.data();
        refused(moecclMoeLayerSetWeights(layer, &weights),
                {"weights.residualW2 is NULL", "[R][M]"});
        weights.residualW2 = numbers.data();
        check(moecclMoeLayerSetWeights(layer, &weights));
        check(moecclMoeLayerSetGradients(layer, &gradients));
      }
      check(moecclMoeLayerDestroy(layer));
    }
  });
}

TEST(MoeErrors, ConfigsFromANewerHeader) {
  struct Newer {
    moecclMoeConfig_t config;
    std::int64_t field;
  };
  onGrid([](moecclGrid_t grid, int) {
    Newer newer{rightConfig(), 0};
    newer.config.size = sizeof(newer);
    moecclMoeLayer_t layer = nullptr;
    check(moecclMoeLayerCreate(grid, &newer.config, &layer));
    check(moecclMoeLayerDestroy(layer));
    newer.field = 1;
    checkError(moecclMoeLayerCreate(grid, &newer.config, &layer), moecclInvalidArgument, nullptr,
               {"config sets a field (at byte", "and this library, ", ", has not"});
  });
}

// What one rank alone finds wrong: it says what, the others who, and nobody waits.
TEST(MoeErrors, OneRankAlone) {
  onGrid([](moecclGrid_t grid, int rank) {
    const auto refused = [&](const moecclMoeConfig_t* config, moecclMoeLayer_t* layer,
                             const char* why) {
      const moecclResult_t result = moecclMoeLayerCreate(grid, config, layer);
      if (rank == 1)
        checkError(result, moecclInvalidArgument, nullptr, {"moecclMoeLayerCreate", why});
      else
        checkError(result, moecclRemoteError, nullptr,
                   {"moecclMoeLayerCreate", "rank 1 failed", why});
      checkThat(layer == nullptr || *layer == nullptr, "a layer in spite of the error");
    };
    moecclMoeConfig_t config = rightConfig();
    moecclMoeLayer_t layer = nullptr;
    refused(rank == 1 ? nullptr : &config, &layer, "config is NULL");
    refused(&config, rank == 1 ? nullptr : &layer, "layer is NULL");
    config.version = rank == 1 ? 0 : config.version;
    refused(&config, &layer, "config was not initialised");
    config = rightConfig();
    config.schedule = rank == 1 ? kNoSchedule : moecclScheduleS1;
    refused(&config, &layer, "config.schedule is 7");
    config = rightConfig();
    check(moecclMoeLayerCreate(grid, &config, &layer));
    check(moecclMoeLayerDestroy(layer));
  });
}

TEST(MoeErrors, TokenRoutingWhereNoRowsAreBroughtToExperts) {
  Job job;
  job.ranks = 4;
  runJob(job, [](moecclComm_t comm, int) {
    moecclGrid_t grid = makeGrid(comm, {4, 2, 2, moecclOrderEspEp});
    expectRefused(grid,
                  [](auto& c) {
                    c.dropless = c.tokenRouting = 1;
                    c.capacityFactor = 0;
                    c.schedule = moecclSchedulePpMoe;
                  },
                  {"config.tokenRouting is 1", "PPMoE brings no rows to experts", "0 or -1"});
    check(moecclGridDestroy(grid));
  });
}

TEST(MoeErrors, Environment) {
  setenv("MOECCL_SCHEDULE", "fastest", 1);
  onGrid([](moecclGrid_t grid, int) {
    expectRefused(grid, [](auto&) {}, {"MOECCL_SCHEDULE is \"fastest\"", "S1, S2"});
  });
  // What the config does not say is not said to be wrong there.
  setenv("MOECCL_SCHEDULE", "ppmoe", 1);
  onGrid([](moecclGrid_t grid, int) {
    expectRefused(grid, [](auto&) {}, {"MOECCL_SCHEDULE is \"PPMoE\"", "nMp is 2"});
  });
  setenv("MOECCL_SCHEDULE", "S2", 1);
  onGrid([](moecclGrid_t grid, int) {
    expectRefused(grid,
                  [](auto& c) {
                    c.dropless = 1;
                    c.capacityFactor = 0;
                  },
                  {"MOECCL_SCHEDULE is \"S2\"", "S2 splits the capacity"});
  });
  for (const auto& [name, schedule] : {std::pair{"baseline", moecclScheduleBaseline},
                                       {"S1", moecclScheduleS1},
                                       {"s2", moecclScheduleS2},
                                       {"auto", moecclScheduleAuto},
                                       {"", moecclScheduleBaseline}}) {
    setenv("MOECCL_SCHEDULE", name, 1);
    onGrid([&, schedule = schedule](moecclGrid_t grid, int) {
      moecclMoeConfig_t config = rightConfig();
      config.schedule = moecclScheduleBaseline;
      moecclMoeLayer_t layer = nullptr;
      check(moecclMoeLayerCreate(grid, &config, &layer));
      moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
      check(moecclMoeLayerGetShapes(layer, &shapes));
      // Auto is what the library says it would take, whatever the config says.
      config.schedule = moecclScheduleAuto;
      moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
      cluster.grid = grid;
      moecclQuery_t query = MOECCL_QUERY_INITIALIZER;
      query.cluster = &cluster;
      query.layer = &config;
      moecclChoices_t choices = nullptr;
      check(moecclSelect(&query, &choices, nullptr));
      moecclChoice_t first = MOECCL_CHOICE_INITIALIZER;
      check(moecclChoicesGet(choices, 0, -1, &first));
      check(moecclChoicesDestroy(choices));
      const moecclSchedule_t expected = schedule == moecclScheduleAuto ? first.schedule : schedule;
      checkThat(shapes.schedule == expected, "schedule " + std::to_string(shapes.schedule));
      check(moecclMoeLayerDestroy(layer));
    });
  }
  unsetenv("MOECCL_SCHEDULE");
}

TEST(MoeErrors, AutoIsNotS1WhereGroupsCrossParts) {
  onGrid([](moecclGrid_t grid, int) {
    moecclMoeConfig_t config = rightConfig();
    config.capacityGroups = 3;
    moecclMoeLayer_t layer = nullptr;
    check(moecclMoeLayerCreate(grid, &config, &layer));
    moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
    check(moecclMoeLayerGetShapes(layer, &shapes));
    checkThat(shapes.schedule != moecclScheduleS1, "S1");
    check(moecclMoeLayerDestroy(layer));
  });
}

TEST(MoeErrors, ArgumentsOfEveryFunction) {
  onGrid([](moecclGrid_t grid, int) {
    const moecclMoeConfig_t config = rightConfig();
    moecclMoeLayer_t layer = nullptr;
    const auto refused = [](moecclResult_t result, const Parts& parts) {
      checkError(result, moecclInvalidArgument, nullptr, parts);
    };
    refused(moecclMoeLayerCreate(nullptr, &config, &layer), {"moecclMoeLayerCreate: grid is NULL"});
    refused(moecclMoeLayerCreate(grid, nullptr, &layer), {"config is NULL"});
    refused(moecclMoeLayerCreate(grid, &config, nullptr), {"layer is NULL"});
    check(moecclMoeLayerDestroy(nullptr));
    check(moecclMoeLayerCreate(grid, &config, &layer));

    moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
    refused(moecclMoeLayerGetShapes(nullptr, &shapes), {"moecclMoeLayerGetShapes: layer is NULL"});
    refused(moecclMoeLayerGetShapes(layer, nullptr), {"shapes is NULL"});
    shapes.magic = 1;
    refused(moecclMoeLayerGetShapes(layer, &shapes), {"shapes was not initialised"});

    std::vector<float> input(8 * 4), output(8 * 4), numbers(1000);
    checkError(moecclMoeForward(layer, input.data(), output.data(), nullptr), moecclInvalidUsage,
               nullptr, {"moecclMoeForward: the layer has no weights", "SetWeights"});
    moecclMoeWeights_t weights = MOECCL_MOE_WEIGHTS_INITIALIZER;
    weights.gate = weights.w1 = weights.w2 = numbers.data();
    refused(moecclMoeLayerSetWeights(nullptr, &weights), {"layer is NULL"});
    refused(moecclMoeLayerSetWeights(layer, nullptr), {"weights is NULL"});
    for (const void* moecclMoeWeights_t::*field :
         {&moecclMoeWeights_t::gate, &moecclMoeWeights_t::w1, &moecclMoeWeights_t::w2}) {
      moecclMoeWeights_t wrong = weights;
      wrong.*field = nullptr;
      refused(moecclMoeLayerSetWeights(layer, &wrong), {"is NULL; it must hold ["});
    }
    moecclMoeWeights_t spoiled = weights;
    spoiled.size = 0;
    refused(moecclMoeLayerSetWeights(layer, &spoiled), {"weights was not initialised"});
    check(moecclMoeLayerSetWeights(layer, &weights));

    moecclMoeStats_t stats = MOECCL_MOE_STATS_INITIALIZER;
    checkError(moecclMoeGetStats(layer, &stats), moecclInvalidUsage, nullptr,
               {"no moecclMoeForward has completed"});
    refused(moecclMoeForward(nullptr, input.data(), output.data(), nullptr), {"layer is NULL"});
    refused(moecclMoeForward(layer, nullptr, output.data(), nullptr), {"input is NULL"});
    refused(moecclMoeForward(layer, input.data(), nullptr, nullptr), {"output is NULL"});
    check(moecclMoeForward(layer, input.data(), output.data(), nullptr));
    refused(moecclMoeGetStats(nullptr, &stats), {"layer is NULL"});
    refused(moecclMoeGetStats(layer, nullptr), {"stats is NULL"});
    stats.version = 0;
    refused(moecclMoeGetStats(layer, &stats), {"stats was not initialised"});
    check(moecclMoeLayerDestroy(layer));
  });
}

TEST(MoeErrors, ArgumentsOfGradients) {
  onGrid([](moecclGrid_t grid, int) {
    const auto refused = [](moecclResult_t result, const Parts& parts,
                            moecclResult_t expected = moecclInvalidArgument) {
      checkError(result, expected, nullptr, parts);
    };
    moecclMoeConfig_t config = rightConfig();
    moecclMoeGradients_t gradients = MOECCL_MOE_GRADIENTS_INITIALIZER;
    std::vector<float> input(8 * 4), numbers(1000);
    moecclMoeWeights_t weights = MOECCL_MOE_WEIGHTS_INITIALIZER;
    weights.gate = weights.w1 = weights.w2 = numbers.data();
    moecclMoeLayer_t layer = nullptr;
    check(moecclMoeLayerCreate(grid, &config, &layer));
    check(moecclMoeLayerSetWeights(layer, &weights));
    check(moecclMoeForward(layer, input.data(), input.data(), nullptr));
    refused(moecclMoeLayerSetGradients(layer, &gradients), {"SetGradients", "config.training 1"},
            moecclInvalidUsage);
    refused(moecclMoeBackward(layer, input.data(), 1, input.data(), nullptr),
            {"moecclMoeBackward", "config.training 1"}, moecclInvalidUsage);
    check(moecclMoeLayerDestroy(layer));

    config.training = 1;
    check(moecclMoeLayerCreate(grid, &config, &layer));
    check(moecclMoeLayerSetWeights(layer, &weights));
    refused(moecclMoeLayerSetGradients(nullptr, &gradients), {"layer is NULL"});
    refused(moecclMoeLayerSetGradients(layer, nullptr), {"gradients is NULL"});
    gradients.magic = MOECCL_MOE_WEIGHTS_MAGIC;
    refused(moecclMoeLayerSetGradients(layer, &gradients), {"gradients was not initialised"});
    refused(moecclMoeBackward(layer, input.data(), 1, input.data(), nullptr),
            {"no moecclMoeForward has completed"}, moecclInvalidUsage);
    check(moecclMoeForward(layer, input.data(), input.data(), nullptr));
    refused(moecclMoeBackward(nullptr, input.data(), 1, input.data(), nullptr), {"layer is NULL"});
    refused(moecclMoeBackward(layer, nullptr, 1, input.data(), nullptr),
            {"outputGradient is NULL"});
    refused(moecclMoeBackward(layer, input.data(), 1, nullptr, nullptr), {"inputGradient is NULL"});
    check(moecclMoeBackward(layer, input.data(), 1, input.data(), nullptr));
    check(moecclMoeLayerDestroy(layer));
  });
}

// A layer whose rank 1 goes, and the phases in which others may notice: one that does not await
// rank 1 itself comes to the next.
struct Gone {
  const char* name;
  moecclSchedule_t schedule;
  Parts phases;
  int chunks = 1;
  bool dropless = false;
  std::int64_t residual = 0;
  std::int64_t tokenRouting = -1;  // of dropless layers
};
void PrintTo(const Gone& gone, std::ostream* out) {
  *out << gone.name << ", noticed in";
  for (const std::string& phase : gone.phases) *out << " \"" << phase << '"';
}

std::vector<Gone> layersThatRank1Leaves() {
  const Parts first = {"ESP-", "EP-", "MP-", "dispatch: "};
  return {{"Baseline", moecclScheduleBaseline, {"ESP-AllGather: ", "first EP-AlltoAll: "}},
          {"S1", moecclScheduleS1, {"dispatch: "}},
          {"S1InChunks", moecclScheduleS1, {"dispatch: "}, 3},
          {"S2", moecclScheduleS2, {"dispatch: "}},
          {"PpMoe", moecclSchedulePpMoe, {"AllReduce: "}},
          {"S1Dropless", moecclScheduleS1, first, 1, true},
          {"BaselineDropless", moecclScheduleBaseline, first, 1, true},
          {"S1DroplessWithResidual", moecclScheduleS1, first, 1, true, 3},
          {"BaselineDroplessWithResidual", moecclScheduleBaseline, first, 1, true, 3},
          {"S1Routed", moecclScheduleS1, {"token ", "MP-"}, 1, true, 0, 1},
          {"BaselineRouted", moecclScheduleBaseline, {"token "}, 1, true, 0, 1},
          {"S1RoutedInChunks", moecclScheduleS1, {"token ", "MP-"}, 3, true, 0, 1},
          {"S1DroplessInChunks", moecclScheduleS1, first, 3, true},
          {"BaselineDroplessInChunks", moecclScheduleBaseline, first, 3, true},
          {"BaselineRoutedInChunks", moecclScheduleBaseline, {"token "}, 3, true, 0, 1},
          {"S1RoutedWithResidual", moecclScheduleS1, {"token ", "MP-"}, 1, true, 3, 1},
          {"S1WithResidual", moecclScheduleS1, {"dispatch: ", "MP-"}, 1, false, 3},
          {"S2WithResidual", moecclScheduleS2, {"dispatch: ", "MP-"}, 1, false, 3},
          {"PpMoeWithResidual", moecclSchedulePpMoe, {"AllReduce: ", "MP-"}, 1, false, 3}};
}

class APeerThatLeaves : public testing::TestWithParam<Gone> {
 protected:
  static void expectEndWithoutRank1(bool backward);
};

TEST_P(APeerThatLeaves, EndsForward) { expectEndWithoutRank1(false); }
TEST_P(APeerThatLeaves, EndsBackward) { expectEndWithoutRank1(true); }

void APeerThatLeaves::expectEndWithoutRank1(bool backward) {
  const auto& [name, schedule, phases, chunks, dropless, residual, tokenRouting] = GetParam();
  const int nMp = schedule == moecclSchedulePpMoe ? 4 : 2;
  Job job;
  job.ranks = 4;
  job.timeoutMs = 3000;
  std::barrier allReady(job.ranks);
  runJob(job, [&, schedule = schedule, chunks = chunks, dropless = dropless, residual = residual,
               tokenRouting = tokenRouting, &phases = phases](moecclComm_t comm, int rank) {
    moecclGrid_t grid = makeGrid(comm, {nMp, 2, 2, moecclOrderEspEp});
    moecclMoeConfig_t config = rightConfig();
    config.schedule = schedule;
    config.training = backward;
    config.capacityGroups = nMp * chunks;
    config.chunks = chunks;
    config.residual = residual;
    if (dropless) {
      config.dropless = 1;
      config.capacityFactor = 0;
      config.capacityGroups = 0;
      config.tokenRouting = tokenRouting;
    }
    moecclMoeLayer_t layer = nullptr;
    check(moecclMoeLayerCreate(grid, &config, &layer));
    std::vector<float> input(8 * 4), numbers(1000);
    moecclMoeWeights_t weights = MOECCL_MOE_WEIGHTS_INITIALIZER;
    weights.gate = weights.w1 = weights.w2 = numbers.data();
    if (residual > 0) weights.residualW1 = weights.residualW2 = numbers.data();
    check(moecclMoeLayerSetWeights(layer, &weights));
    if (backward) check(moecclMoeForward(layer, input.data(), input.data(), nullptr));
    allReady.arrive_and_wait();
    if (rank != 1) {
      const moecclResult_t result =
          backward ? moecclMoeBackward(layer, input.data(), 1.0, input.data(), nullptr)
                   : moecclMoeForward(layer, input.data(), input.data(), nullptr);
      const std::string text = moecclGetLastError(nullptr);
      checkThat(result == moecclRemoteError || result == moecclTimeout,
                "result " + std::to_string(result) + ": " + text);
      const std::string function = backward ? "moecclMoeBackward: " : "moecclMoeForward: ";
      checkThat(
          std::ranges::any_of(
              phases, [&](const std::string& phase) { return text.starts_with(function + phase); }),
          text);
    }
    check(moecclMoeLayerDestroy(layer));
    moecclGridDestroy(grid);
    throw Aborts{};
  });
}

INSTANTIATE_TEST_SUITE_P(Layers, APeerThatLeaves, testing::ValuesIn(layersThatRank1Leaves()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace moeccl::test
