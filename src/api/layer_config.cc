// Compares a layer's config across ranks, field by field.
#include "src/api/layer_config.h"

#include <array>
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "src/api/arguments.h"
#include "src/base/text.h"
#include "src/comm/agreement.h"
#include "src/model/gate_config.h"

namespace moeccl {
namespace {

// By moecclMoeActivation_t.
constexpr std::array<const char*, moecclMoeNumActivations> kActivations = {
    "moecclMoeGelu", "moecclMoeRelu", "moecclMoeSwiglu"};

// A field of the config, as ranks exchange it.
struct Field {
  const char* name;
  std::int64_t value;
  std::string (*text)(std::int64_t value);
};

Field whole(const char* name, std::int64_t value) {
  return {name, value, [](std::int64_t number) { return numberText(number); }};
}
// By the bits of a double.
Field real(const char* name, double value) {
  return {name, std::bit_cast<std::int64_t>(value),
          [](std::int64_t bits) { return numberText(std::bit_cast<double>(bits)); }};
}

std::vector<Field> fieldsOf(const moecclMoeConfig_t& config, std::int64_t schedule) {
  return {whole("tokens", config.tokens),
          whole("embedding", config.embedding),
          whole("hidden", config.hidden),
          whole("experts", config.experts),
          whole("topK", config.topK),
          real("capacityFactor", config.capacityFactor),
          whole("capacityGroups", config.capacityGroups),
          {"activation", config.activation,
           [](std::int64_t number) { return nameAt(kActivations, number); }},
          {"datatype", config.datatype, typeText},
          {"schedule (config.schedule, or MOECCL_SCHEDULE)", schedule, scheduleText},
          whole("training", config.training),
          whole("chunks", config.chunks),
          {"gate", config.gate, gateText},
          whole("seed", config.seed),
          real("switchGate.jitter", config.switchGate.jitter),
          real("noisyTopK.importanceWeight", config.noisyTopK.importanceWeight),
          real("noisyTopK.loadWeight", config.noisyTopK.loadWeight),
          whole("sigmoid.expertGroups", config.sigmoid.expertGroups),
          whole("sigmoid.topGroups", config.sigmoid.topGroups),
          real("sigmoid.routingScale", config.sigmoid.routingScale),
          whole("sigmoid.sequenceTokens", config.sigmoid.sequenceTokens),
          whole("dropless", config.dropless),
          whole("residual", config.residual),
          whole("learn", config.learn),
          whole("minCapacity", config.minCapacity),
          whole("renormalize", config.renormalize),
          whole("tokenRouting", config.tokenRouting)};
}

}  // namespace

void requireSameConfig(Communicator& communicator, const moecclMoeConfig_t& config,
                       moecclSchedule_t requested) {
  const std::vector<Field> fields = fieldsOf(config, requested);
  std::vector<std::int64_t> mine;
  for (const Field& field : fields) mine.push_back(field.value);
  requireSameValues(
      communicator, mine, [&](std::size_t place) { return std::string(fields[place].name); },
      [&](std::size_t place, std::int64_t value) { return fields[place].text(value); });
}

}  // namespace moeccl
