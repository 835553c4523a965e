// Checks a gate's part of the public config and turns it into the kernels' config. Errors name the
// fields as the public config does.
#include "src/model/gate_config.h"

#include <array>
#include <string>

#include "src/base/error.h"
#include "src/base/text.h"

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

// A field that only one gate reads is a mistake where it is set for another.
void requireOwnFields(const moecclMoeConfig_t& config) {
  struct Field {
    const char* name;
    double value;
    moecclMoeGate_t gate;
  };
  for (const Field& field : {
           Field{"switchGate.jitter", config.switchGate.jitter, moecclGateSwitch},
           Field{"noisyTopK.importanceWeight", config.noisyTopK.importanceWeight,
                 moecclGateNoisyTopK},
           Field{"noisyTopK.loadWeight", config.noisyTopK.loadWeight, moecclGateNoisyTopK},
           Field{"sigmoid.expertGroups", static_cast<double>(config.sigmoid.expertGroups),
                 moecclGateSigmoid},
           Field{"sigmoid.topGroups", static_cast<double>(config.sigmoid.topGroups),
                 moecclGateSigmoid},
           Field{"sigmoid.routingScale", config.sigmoid.routingScale, moecclGateSigmoid},
           Field{"sigmoid.sequenceTokens", static_cast<double>(config.sigmoid.sequenceTokens),
                 moecclGateSigmoid},
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

std::string gateText(std::int64_t gate) {
  if (gate < 0 || gate >= moecclNumGates) return std::to_string(gate);
  return kKinds[static_cast<std::size_t>(gate)].name;
}

gates::Config gateConfig(const moecclMoeConfig_t& config) {
  if (config.gate < 0 || config.gate >= moecclNumGates)
    refuse(
        stringf("gate is %d; it must be a moecclMoeGate_t, from moecclGateSoftmax (0) to "
                "moecclGateSigmoid (5)",
                static_cast<int>(config.gate)));
  requireOwnFields(config);
  const long long topK = config.topK;
  const long long only = config.gate == moecclGateSwitch   ? 1
                         : config.gate == moecclGateGShard ? 2
                                                           : topK;
  if (topK != only)
    refuse(stringf("topK is %lld; it must be %lld with %s", topK, only, kKinds[config.gate].name));
  gates::Config gate;
  gate.kind = kKinds[config.gate].kind;
  gate.batchTokens = config.tokens;
  gate.embedding = config.embedding;
  gate.experts = static_cast<std::int32_t>(config.experts);
  gate.choices = static_cast<std::int32_t>(config.topK);
  gate.jitter = config.switchGate.jitter;
  if (config.noisyTopK.importanceWeight != 0 || config.noisyTopK.loadWeight != 0) {
    gate.importanceWeight = config.noisyTopK.importanceWeight;
    gate.loadWeight = config.noisyTopK.loadWeight;
  }
  gate.expertGroups =
      groupsOr("sigmoid.expertGroups", config.sigmoid.expertGroups, config.experts, 1);
  gate.topGroups =
      groupsOr("sigmoid.topGroups", config.sigmoid.topGroups, config.experts, gate.expertGroups);
  if (config.sigmoid.routingScale != 0) gate.routingScale = config.sigmoid.routingScale;
  gate.sequenceTokens = config.sigmoid.sequenceTokens;
  gate.renormalize = config.renormalize == 1;
  std::string problem = gates::problem(gate);
  if (problem.empty()) return gate;
  if (problem.starts_with("choices"))
    problem.replace(0, 7, "topK");
  else if (config.gate == moecclGateSwitch)
    problem.insert(0, "switchGate.");
  else if (config.gate == moecclGateNoisyTopK)
    problem.insert(0, "noisyTopK.");
  else if (config.gate == moecclGateSigmoid)
    problem.insert(0, "sigmoid.");
  refuse(problem);
}

}  // namespace moeccl
