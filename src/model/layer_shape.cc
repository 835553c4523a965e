// Checks a layer's config against the grid, and computes the sizes that follow: capacity groups,
// places, parts and chunks. Errors name the field, its value and what would be right.
#include "src/model/layer_shape.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "algorithms/routes/route.h"
#include "src/base/error.h"
#include "src/base/round_up.h"
#include "src/base/text.h"
#include "src/model/gate_config.h"
#include "src/model/schedule_list.h"

namespace moeccl {
namespace {

constexpr std::int64_t kLargestInt = std::numeric_limits<std::int32_t>::max();

template <typename Value>
[[noreturn]] void refuse(const char* field, Value value, const std::string& right) {
  throw Error(moecclInvalidArgument,
              std::string("config.") + field + " is " + numberText(value) + "; " + right);
}

void requireRange(const char* field, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value >= least && value <= most) return;
  refuse(field, value,
         most == std::numeric_limits<std::int64_t>::max()
             ? "it must be set, to at least " + std::to_string(least)
             : "it must be set, from " + std::to_string(least) + " to " + std::to_string(most));
}

// Each has streams and routings of its own. Those of other layers are bounded by capacityGroups.
constexpr std::int64_t kMostDroplessChunks = 64;

void checkDropless(const moecclMoeConfig_t& config) {
  if (config.capacityFactor != 0)
    refuse("capacityFactor", config.capacityFactor,
           "a dropless layer has no capacity; it must be 0");
  if (config.capacityGroups != 0)
    refuse("capacityGroups", config.capacityGroups,
           "a dropless layer has no capacity; it must be 0");
  if (config.minCapacity != 0)
    refuse("minCapacity", config.minCapacity, "a dropless layer has no capacity; it must be 0");
  requireRange("chunks", config.chunks, 0, kMostDroplessChunks);
  if (config.gate == moecclGateExpertChoice)
    refuse(
        "dropless", config.dropless,
        "it must be 0 with moecclGateExpertChoice, whose experts take as many tokens as they have "
        "places");
}

void checkRouting(const moecclMoeConfig_t& config) {
  requireRange("tokenRouting", config.tokenRouting, -1, 1);
  if (config.tokenRouting == 0) return;
  const auto refuseIf = [&](bool wrong, const char* why) {
    if (wrong) refuse("tokenRouting", config.tokenRouting, why);
  };
  refuseIf(config.dropless == 0, "rows have places in a layer with a capacity; it must be 0");
  if (config.tokenRouting < 0) return;
  refuseIf(config.datatype == moecclFloat64, "token routing has no float64; it must be 0 or -1");
  refuseIf(config.experts > routes::kMostExperts || config.topK > routes::kMostChoices,
           "token routing has up to 32768 experts and 128 choices; it must be 0 or -1");
}

// 0: layers do not have it.
std::int64_t elementBytesOf(moecclDataType_t datatype) {
  switch (datatype) {
    case moecclFloat64:
      return 8;
    case moecclFloat32:
      return 4;
    case moecclFloat16:
    case moecclBfloat16:
      return 2;
    default:
      return 0;
  }
}

void check(const moecclMoeConfig_t& config, const moecclGridShape_t& grid) {
  requireRange("tokens", config.tokens, 0, std::numeric_limits<std::int64_t>::max());
  requireRange("embedding", config.embedding, 1, kLargestInt);
  requireRange("hidden", config.hidden, 1, kLargestInt);
  requireRange("experts", config.experts, 1, kLargestInt);
  requireRange("topK", config.topK, 1, config.experts);
  if (config.dropless != 0 && config.dropless != 1)
    refuse("dropless", config.dropless, "it must be 0 or 1");
  checkRouting(config);
  if (config.dropless == 1)
    checkDropless(config);
  else if (!(config.capacityFactor > 0) || !std::isfinite(config.capacityFactor))
    refuse("capacityFactor", config.capacityFactor, "it must be set, to a finite number above 0");
  if (config.renormalize != 0 && config.renormalize != 1)
    refuse("renormalize", config.renormalize, "it must be 0 or 1");
  if (config.renormalize == 1 && (config.dropless == 1 || config.gate == moecclGateExpertChoice))
    refuse("renormalize", config.renormalize,
           "it must be 0 in a dropless layer and with moecclGateExpertChoice, which drop nothing");
  requireRange("minCapacity", config.minCapacity, 0, kLargestInt);
  requireRange("residual", config.residual, 0, kLargestInt);
  requireRange("capacityGroups", config.capacityGroups, 0, kLargestInt);
  requireRange("chunks", config.chunks, 0, kLargestInt);
  if (config.hidden % grid.nEsp != 0)
    refuse("hidden", config.hidden,
           "it must be a multiple of the grid's nEsp, " + std::to_string(grid.nEsp));
  if (config.experts % grid.nEp != 0)
    refuse("experts", config.experts,
           "it must be a multiple of the grid's nEp, " + std::to_string(grid.nEp));
  if (config.activation < 0 || config.activation >= moecclMoeNumActivations)
    refuse("activation", static_cast<int>(config.activation),
           "it must be moecclMoeGelu, moecclMoeRelu or moecclMoeSwiglu");
  if (config.training != 0 && config.training != 1)
    refuse("training", config.training, "it must be 0 or 1");
  if (config.learn != 0 && config.learn != 1) refuse("learn", config.learn, "it must be 0 or 1");
  if (elementBytesOf(config.datatype) == 0)
    refuse("datatype", static_cast<int>(config.datatype),
           "it must be moecclFloat32 (7), moecclFloat64 (8), moecclFloat16 (" +
               std::to_string(moecclFloat16) + ") or moecclBfloat16 (" +
               std::to_string(moecclBfloat16) + ")");
}

// ceil(k f B L / E), where what is within rounding error of a whole number counts as that number.
// At most `most`, which may be far below.
// At least minCapacity in each group.
std::int64_t wantedPlaces(const moecclMoeConfig_t& config, std::int64_t groups, std::int64_t most) {
  const double exact = static_cast<double>(config.topK) * config.capacityFactor *
                       static_cast<double>(config.tokens) / static_cast<double>(config.experts);
  const double places =
      std::max(std::ceil(exact * (1 - 1e-12)),
               static_cast<double>(groups) * static_cast<double>(config.minCapacity));
  return places >= static_cast<double>(most) ? most : static_cast<std::int64_t>(places);
}

// The schedule of the config or, where it is another, of the environment.
[[noreturn]] void refuseSchedule(const moecclMoeConfig_t& config, moecclSchedule_t schedule,
                                 const std::string& right) {
  if (schedule == config.schedule) refuse("schedule", static_cast<int>(schedule), right);
  throw Error(moecclInvalidArgument,
              std::string("MOECCL_SCHEDULE is \"") + nameOf(schedule) + "\"; " + right);
}

void requireOffered(const moecclMoeConfig_t& config, const LayerShape& shape) {
  if (shape.schedule == moecclScheduleAuto || offers(shape.schedule, shape)) return;
  const moecclGridShape_t& grid = shape.grid;
  const std::string name = nameOf(shape.schedule);
  const std::int64_t ranks = std::int64_t{grid.nEp} * grid.nEsp;
  if (needsOf(shape.schedule).expertsInMp && grid.nMp != ranks)
    refuseSchedule(config, shape.schedule,
                   name + " needs an MP group that holds all experts: the grid's nMp is " +
                       std::to_string(grid.nMp) + ", and must be nEp * nEsp, " +
                       std::to_string(ranks));
  if (shape.dropless && offers(shape.schedule, schedules::Options{.dropless = true}))
    refuse("tokenRouting", config.tokenRouting,
           name + " brings no rows to experts that token routing could; it must be 0 or -1");
  if (!shape.dropless)
    refuse("capacityGroups", shape.groups,
           "schedule " + name + " needs a multiple of the grid's nMp, " + std::to_string(grid.nMp));
  refuseSchedule(config, shape.schedule,
                 name + " splits the capacity, of which a dropless layer has none");
}

// The number of chunks that tokens are cut into.
std::int64_t chunksOf(const moecclMoeConfig_t& config, const LayerShape& shape) {
  if (config.chunks == 0 || shape.schedule == moecclScheduleAuto ||
      !cutsChunks(shape.schedule, shape.dropless, shape.routed))
    return 1;
  if (shape.dropless) return config.chunks;
  const std::int64_t perPart = shape.groups / shape.grid.nMp;
  if (perPart % config.chunks != 0)
    refuse("chunks", config.chunks,
           "each must have as many whole capacity groups; it must divide capacityGroups / nMp, " +
               std::to_string(perPart));
  return config.chunks;
}

}  // namespace

bool offers(moecclSchedule_t schedule, const LayerShape& shape) {
  const moecclGridShape_t& grid = shape.grid;
  const schedules::Needs needs = needsOf(schedule);
  if (needs.expertsInMp && grid.nMp != std::int64_t{grid.nEp} * grid.nEsp) return false;
  if (shape.dropless)
    return offers(schedule, schedules::Options{.dropless = true, .routed = shape.routed});
  return !needs.wholeGroups || shape.groups % grid.nMp == 0;
}

bool routesUnder(moecclSchedule_t schedule, const LayerShape& shape) {
  return shape.dropless && shape.datatype != moecclFloat64 &&
         shape.experts <= routes::kMostExperts && shape.choices <= routes::kMostChoices &&
         offers(schedule, schedules::Options{.dropless = true, .routed = true});
}

bool routesSomehow(const LayerShape& shape) {
  for (int number = 1; number < scheduleNumbers(); ++number)
    if (routesUnder(static_cast<moecclSchedule_t>(number), shape)) return true;
  return false;
}

moecclSchedule_t requestedSchedule(const moecclMoeConfig_t& config, const char* environment) {
  if (environment != nullptr && *environment != '\0') {
    if (const auto schedule = scheduleNamed(environment)) return *schedule;
    throw Error(moecclInvalidArgument, std::string("MOECCL_SCHEDULE is \"") + environment +
                                           "\"; it must be " + scheduleNames());
  }
  if (!isSchedule(config.schedule))
    refuse("schedule", static_cast<int>(config.schedule),
           "it must be from 0 to " + std::to_string(scheduleNumbers() - 1) + ", the number of " +
               scheduleNames());
  return config.schedule;
}

LayerShape layerShape(const moecclMoeConfig_t& config, moecclSchedule_t schedule,
                      const moecclGridShape_t& grid) {
  check(config, grid);
  LayerShape shape{};
  shape.tokens = config.tokens;
  shape.embedding = config.embedding;
  shape.experts = static_cast<std::int32_t>(config.experts);
  shape.gate = gateConfig(config);
  shape.choices = gates::width(shape.gate);
  shape.seed = config.seed;
  shape.activation = config.activation == moecclMoeGelu   ? Activation::gelu
                     : config.activation == moecclMoeRelu ? Activation::relu
                                                          : Activation::swiglu;
  shape.datatype = config.datatype;
  shape.elementBytes = elementBytesOf(config.datatype);
  shape.grid = grid;
  shape.training = config.training != 0;
  shape.localExperts = config.experts / grid.nEp;
  shape.localHidden = config.hidden / grid.nEsp;
  shape.residual = config.residual;
  shape.groups = config.capacityGroups == 0 ? grid.nMp : config.capacityGroups;
  shape.dropless = config.dropless == 1;
  // One group, in which every choice has a place; or as many as are gated by themselves.
  if (shape.dropless && (schedule == moecclScheduleAuto || !needsOf(schedule).wholeGroups))
    shape.groups = 1;
  shape.routed = config.tokenRouting > 0;
  shape.schedule = schedule;
  requireOffered(config, shape);

  const std::int64_t unit = std::lcm(shape.groups, static_cast<std::int64_t>(grid.nMp));
  if (config.tokens > std::numeric_limits<std::int64_t>::max() - unit)
    refuse("tokens", config.tokens, "so many exceed the address space");
  if (config.sigmoid.sequenceTokens > 0)
    elementCount({config.tokens, 4, config.experts});  // of sums
  const std::int64_t padded = roundUp(config.tokens, unit);
  elementCount({padded, config.embedding});
  const std::int64_t capacity =
      shape.dropless ? padded : roundUp(wantedPlaces(config, shape.groups, padded), unit);
  shape.groupTokens = padded / shape.groups;
  shape.groupSlots = capacity / shape.groups;
  shape.partTokens = padded / grid.nMp;
  shape.gate.capacityTokens = shape.groupTokens;
  shape.gate.capacitySlots = shape.groupSlots;
  shape.chunks = 1;
  const std::int64_t chunks = chunksOf(config, shape);
  return chunks == 1 ? shape : inChunks(shape, chunks);
}

LayerShape inChunks(LayerShape shape, std::int64_t chunks) {
  shape.chunks = chunks;
  if (!shape.dropless) return shape;
  const std::int64_t unit = shape.grid.nMp * chunks;
  const std::int64_t padded = roundUp(shape.tokens, unit);
  shape.groups = needsOf(shape.schedule).wholeGroups ? unit : chunks;
  // A group's places are as many as its tokens.
  shape.groupTokens = shape.groupSlots = padded / shape.groups;
  shape.partTokens = padded / shape.grid.nMp;
  shape.gate.capacityTokens = shape.groupTokens;
  shape.gate.capacitySlots = shape.groupSlots;
  return shape;
}

}  // namespace moeccl
