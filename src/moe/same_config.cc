#include "src/moe/same_config.h"

#include <bit>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "src/base/boundary.h"
#include "src/base/text.h"
#include "src/schedule/groups.h"

namespace moeccl {
namespace {

// A field of the config, as ranks exchange it.
struct Field {
  const char* name;
  bool real;  // the bits of a double
  std::int64_t value;
};

Field whole(const char* name, std::int64_t value) { return {name, false, value}; }
Field real(const char* name, double value) {
  return {name, true, std::bit_cast<std::int64_t>(value)};
}

std::vector<Field> fieldsOf(const moecclMoeConfig_t& config, std::int64_t schedule) {
  return {whole("tokens", config.tokens),
          whole("embedding", config.embedding),
          whole("hidden", config.hidden),
          whole("experts", config.experts),
          whole("topK", config.topK),
          real("capacityFactor", config.capacityFactor),
          whole("capacityGroups", config.capacityGroups),
          whole("activation", config.activation),
          whole("datatype", config.datatype),
          whole("schedule (config.schedule, or MOECCL_SCHEDULE)", schedule),
          whole("training", config.training),
          whole("chunks", config.chunks),
          whole("gate", config.gate),
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

std::string textOf(const Field& field, std::int64_t value) {
  return field.real ? numberText(std::bit_cast<double>(value)) : numberText(value);
}

}  // namespace

void requireSameConfig(moecclGrid_t grid, const moecclMoeConfig_t& config,
                       moecclSchedule_t requested) {
  const int ranks = groupsOf(grid).world.ranks;
  const std::vector<Field> fields = fieldsOf(config, requested);
  std::vector<std::int64_t> mine, all(static_cast<std::size_t>(ranks) * fields.size());
  for (const Field& field : fields) mine.push_back(field.value);
  requireSuccess(
      moecclInternalExchange(grid, mine.data(), all.data(), mine.size() * sizeof(std::int64_t)));
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::size_t field = i % fields.size();
    if (all[i] != all[field])
      throw Error(moecclInvalidUsage, std::string("ranks came with different configs: ") +
                                          fields[field].name + " is " +
                                          textOf(fields[field], all[field]) + " on rank 0 and " +
                                          textOf(fields[field], all[i]) + " on rank " +
                                          std::to_string(i / fields.size()));
  }
}

void requireSameText(moecclGrid_t grid, std::string_view text) {
  const std::size_t mine = std::hash<std::string_view>{}(text);
  std::vector<std::size_t> all(static_cast<std::size_t>(groupsOf(grid).world.ranks));
  requireSuccess(moecclInternalExchange(grid, &mine, all.data(), sizeof mine));
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank] != all[0])
      throw Error(moecclInvalidUsage, "ranks came with different texts: that of rank " +
                                          std::to_string(rank) + " is not that of rank 0");
}

}  // namespace moeccl
