#include "src/moe/gate_config.h"

#include <array>
#include <string>

#include "src/error.h"
#include "src/text.h"

namespace moeccl {
namespace {

struct GateKind {
  const char* name;
  gates::Kind kind;
};

// By moecclMoeGate_t.
constexpr std::array<GateKind, moecclNumGates> kKinds = {{
    {"moecclGateSoftmax", gates::Kind::softmax},
    {"moecclGateNoisyTopK", gates::Kind::noisy},
    {"moecclGateGShard", gates::Kind::gshard},
    {"moecclGateSwitch", gates::Kind::softmax},
    {"moecclGateExpertChoice", gates::Kind::expertChoice},
    {"moecclGateSigmoid", gates::Kind::sigmoid},
}};

[[noreturn]] void refuse(const std::string& text) {
  throw Error(moecclInvalidArgument, "config." + text);
}

// What one gate reads means a mistake where it is set for another.
void requireOwnFields(const moecclMoeConfig_t& config) {
  struct Field {
    const char* name;
    double value;
    moecclMoeGate_t gate;
  };
  for (const Field& field : {
           Field{"jitter", config.jitter, moecclGateSwitch},
           Field{"importanceWeight", config.importanceWeight, moecclGateNoisyTopK},
           Field{"loadWeight", config.loadWeight, moecclGateNoisyTopK},
           Field{"expertGroups", static_cast<double>(config.expertGroups), moecclGateSigmoid},
           Field{"topGroups", static_cast<double>(config.topGroups), moecclGateSigmoid},
           Field{"routingScale", config.routingScale, moecclGateSigmoid},
           Field{"sequenceTokens", static_cast<double>(config.sequenceTokens), moecclGateSigmoid},
       })
    if (field.value != 0 && field.gate != config.gate)
      refuse(stringf("%s is %g; it must be 0 with %s, since %s alone reads it", field.name,
                     field.value, kKinds[config.gate].name, kKinds[field.gate].name));
}

// A count of groups of experts, or what stands for 0.
std::int32_t groupsOr(const char* name, std::int64_t value, std::int64_t experts,
                      std::int32_t otherwise) {
  if (value < 0 || value > experts)
    refuse(stringf("%s is %lld; it must be from 0 to the number of experts, %lld", name,
                   static_cast<long long>(value), static_cast<long long>(experts)));
  return value == 0 ? otherwise : static_cast<std::int32_t>(value);
}

}  // namespace

gates::Config gateConfig(const moecclMoeConfig_t& config) {
  if (config.gate < 0 || config.gate >= moecclNumGates)
    refuse(
        stringf("gate is %d; it must be a moecclMoeGate_t, from moecclGateSoftmax (0) to "
                "moecclGateSigmoid (5)",
                static_cast<int>(config.gate)));
  requireOwnFields(config);
  if (config.gate == moecclGateSwitch && config.topK != 1)
    refuse(stringf("topK is %lld; it must be 1 with moecclGateSwitch",
                   static_cast<long long>(config.topK)));
  gates::Config gate;
  gate.kind = kKinds[config.gate].kind;
  gate.batchTokens = config.tokens;
  gate.embedding = config.embedding;
  gate.experts = static_cast<std::int32_t>(config.experts);
  gate.choices = static_cast<std::int32_t>(config.topK);
  gate.jitter = config.jitter;
  if (config.importanceWeight != 0 || config.loadWeight != 0) {
    gate.importanceWeight = config.importanceWeight;
    gate.loadWeight = config.loadWeight;
  }
  gate.expertGroups = groupsOr("expertGroups", config.expertGroups, config.experts, 1);
  gate.topGroups = groupsOr("topGroups", config.topGroups, config.experts, gate.expertGroups);
  if (config.routingScale != 0) gate.routingScale = config.routingScale;
  gate.sequenceTokens = config.sequenceTokens;
  std::string problem = gates::problem(gate);
  if (problem.starts_with("choices")) problem.replace(0, 7, "topK");
  if (!problem.empty()) refuse(problem);
  return gate;
}

}  // namespace moeccl
