// Reads and checks a route's config, and compares what it says across ranks.
#include "src/api/route_config.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/quantise.h"
#include "src/api/arguments.h"
#include "src/base/structs.h"
#include "src/base/text.h"
#include "src/comm/agreement.h"
#include "src/model/schedule_list.h"
#include "src/route/route_schedules.h"

namespace moeccl {
namespace {

constexpr StructKind<moecclRouteConfig_t> kRouteConfig = {
    "config", "MOECCL_ROUTE_CONFIG_INITIALIZER", MOECCL_ROUTE_CONFIG_MAGIC,
    MOECCL_END_OF(moecclRouteConfig_t, numBuckets), MOECCL_END_OF(moecclRouteConfig_t, wire)};

// Tokens that a rank may have in latency mode, where memory is there for all of them.
constexpr std::int64_t kMostLatencyTokens = 1024;
constexpr std::int64_t kMostAlignment = 4096;

void requireBetween(const char* field, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most)
    invalid(std::string("config.") + field + " is " + std::to_string(value) + "; it must be " +
            std::to_string(least) + " to " + std::to_string(most));
}

std::vector<std::int64_t> bucketsOf(const moecclRouteConfig_t& config, bool latency) {
  if (config.numBuckets == 0) return {};
  if (!latency)
    invalid("config.numBuckets is " + std::to_string(config.numBuckets) +
            "; only latency mode has buckets, so it must be 0");
  requireBetween("numBuckets", config.numBuckets, 0, config.maxTokens);
  require(config.buckets != nullptr, "config.buckets is NULL, and config.numBuckets is not 0");
  std::int64_t before = 0;
  for (std::int64_t i = 0; i < config.numBuckets; before = config.buckets[i++])
    if (config.buckets[i] <= before || config.buckets[i] > config.maxTokens)
      invalid("config.buckets[" + std::to_string(i) + "] is " + std::to_string(config.buckets[i]) +
              "; it must be more than " + std::to_string(before) + " and at most maxTokens, " +
              std::to_string(config.maxTokens));
  return {config.buckets, config.buckets + config.numBuckets};
}

// One of `names`, by its place; NULL and "" are the first.
int placeOf(const char* field, const char* value, std::span<const std::string_view> names) {
  if (value == nullptr || *value == '\0') return 0;
  const auto found = std::ranges::find(names, value);
  if (found != names.end()) return static_cast<int>(found - names.begin());
  std::string all;
  for (const std::string_view name : names)
    if (!name.empty()) all += (all.empty() ? "" : ", ") + std::string(name);
  invalid("config." + std::string(field) + " is \"" + value + "\"; there are " + all);
}

constexpr std::array<std::string_view, 2> kModes = {"throughput", "latency"};
// By moecclRouteWeights_t.
constexpr std::array<const char*, moecclRouteNumWeights> kWeights = {
    "moecclRouteWeightsCombine", "moecclRouteWeightsRows", "moecclRouteWeightsNone"};

// Algorithms by their numbers, from 1 on; 0: automatic.
std::vector<std::string_view> algorithmNames() {
  std::vector<std::string_view> names = {""};
  for (const routes::RouteAlgorithm& each : routes::routeAlgorithms()) names.push_back(each.name);
  return names;
}

// Values of fields, for messages.
std::string modeText(std::int64_t mode) {
  return "\"" + std::string(kModes[static_cast<std::size_t>(mode)]) + "\"";
}
std::string algorithmText(std::int64_t algorithm) {
  const std::string_view name = algorithmNames()[static_cast<std::size_t>(algorithm)];
  return name.empty() ? "automatic" : "\"" + std::string(name) + "\"";
}
std::string weightsText(std::int64_t weights) { return nameAt(kWeights, weights); }
std::string wireText(std::int64_t wire) { return wire == 0 ? "0" : typeText(wire); }

void checkDatatypes(const RouteShape& shape) {
  if (shape.scheduled && shape.datatype == moecclFloat64) return;
  if (!isWide(shape.datatype))
    invalid("config.datatype is " + std::to_string(static_cast<int>(shape.datatype)) +
            "; it must be moecclFloat32, Float16 or Bfloat16, or on hosts in throughput mode "
            "Float64");
  if (!isWide(shape.tokenDatatype) && !isFloat8(shape.tokenDatatype))
    invalid("config.tokenDatatype is " + std::to_string(static_cast<int>(shape.tokenDatatype)) +
            "; it must be moecclFloat32, Float16, Bfloat16, Float8e4m3 or Float8e5m2, or 0");
  if (isFloat8(shape.tokenDatatype) && shape.hidden % static_cast<std::int64_t>(kScaled) != 0)
    invalid(
        "config.hidden is " + std::to_string(shape.hidden) +
        "; rows of a float8 have a scale for each 128 elements, so it must be a multiple of 128");
}

// Reads how rows come and travel on routes without a schedule.
void readRows(const moecclRouteConfig_t& config, bool onGpu, RouteShape& shape) {
  requireBetween("rowsByToken", config.rowsByToken, 0, 1);
  requireBetween("maxRows", config.maxRows, 0, std::numeric_limits<std::int32_t>::max());
  requireBetween("alignment", config.alignment, 0, kMostAlignment);
  shape.rowsByToken = config.rowsByToken == 1;
  shape.maxRows = config.maxRows;
  shape.alignment = std::max<std::int64_t>(config.alignment, 1);
  shape.wire = config.wire;
  const auto refuse = [](const std::string& field, const std::string& why) {
    invalid("config." + field + "; " + why);
  };
  if (shape.rowsByToken && (shape.weighs() || onGpu || shape.latency || shape.alignment > 1))
    refuse("rowsByToken is 1",
           "that takes a host communicator, throughput mode, an alignment of 1, and weights that "
           "are moecclRouteWeightsRows or None");
  if (shape.latency && shape.maxRows > 0)
    refuse("maxRows is " + std::to_string(shape.maxRows),
           "in latency mode there is room for all rows, so it must be 0");
  if (shape.latency && shape.alignment > 1)
    refuse("alignment is " + std::to_string(shape.alignment), "in latency mode it must be 0 or 1");
  if (!shape.quantises()) return;
  const std::string wire = "wire is " + std::to_string(static_cast<int>(shape.wire));
  if (!isFloat8(shape.wire)) refuse(wire, "it must be moecclFloat8e4m3, Float8e5m2, or 0");
  if (onGpu) refuse(wire, "rows are quantised on hosts alone: on GPUs it must be 0");
  if (!isWide(shape.tokenDatatype))
    refuse(wire, "tokenDatatype must then be moecclFloat32, Float16 or Bfloat16");
  if (shape.hidden % static_cast<std::int64_t>(kScaled) != 0)
    refuse(wire, "hidden must then be a multiple of 128, not " + std::to_string(shape.hidden));
}

moecclSchedule_t scheduleOf(const char* name) {
  if (name == nullptr || *name == '\0') return moecclScheduleAuto;
  if (const auto schedule = scheduleNamed(name)) return *schedule;
  invalid(std::string("config.schedule is \"") + name + "\"; it must be " + scheduleNames());
}

// Reads the fields of throughput mode and of schedules.
void readSchedule(const moecclRouteConfig_t& config, const Grid& grid, bool onGpu,
                  RouteShape& shape) {
  const moecclGridShape_t its = {grid.mp, grid.ep, grid.esp, moecclOrderEspEp};
  requireBetween("sharedTokens", config.sharedTokens, 0, 1);
  requireBetween("training", config.training, 0, 1);
  requireBetween("learn", config.learn, 0, 1);
  requireBetween("expertElements", config.expertElements, 0,
                 std::numeric_limits<std::int64_t>::max());
  if (!(config.capacityFactor >= 0) || !std::isfinite(config.capacityFactor))
    invalid("config.capacityFactor is " + numberText(config.capacityFactor) +
            "; it must be a finite number above 0, or 0 for a dropless route");
  const std::int64_t most =
      config.capacityFactor > 0 ? std::numeric_limits<std::int32_t>::max() : 0;
  const auto ofCapacity = [&](const char* field, std::int64_t value) {
    if (value < 0 || value > most)
      invalid(std::string("config.") + field + " is " + std::to_string(value) + "; it must be " +
              (most > 0 ? "0 to " + std::to_string(most)
                        : "0, since config.capacityFactor is 0: a dropless route has no capacity"));
  };
  ofCapacity("capacityGroups", config.capacityGroups);
  ofCapacity("minCapacity", config.minCapacity);
  shape.schedule = scheduleOf(config.schedule);
  shape.sharedTokens = config.sharedTokens == 1;
  const char* why = config.capacityFactor > 0              ? "has a capacity"
                    : shape.sharedTokens && its.nMp > 1    ? "shares tokens in MP groups"
                    : shape.schedule != moecclScheduleAuto ? "has a schedule"
                    : shape.datatype == moecclFloat64 && !shape.latency ? "is of float64"
                                                                        : nullptr;
  if (why == nullptr) return;
  const auto refuse = [&](const std::string& field, const std::string& right) {
    invalid("the route " + std::string(why) + "; config." + field + " must be " + right);
  };
  if (shape.latency) refuse("mode", "\"throughput\"");
  if (its.nMp > 1 && !shape.sharedTokens)
    refuse("sharedTokens", "1, since the grid's nMp is " + std::to_string(its.nMp));
  if (shape.weights == moecclRouteWeightsRows)
    refuse("weights", "moecclRouteWeightsCombine or None");
  if (shape.tokenDatatype != shape.datatype) refuse("tokenDatatype", "0, or config.datatype");
  if (shape.rowsByToken) refuse("rowsByToken", "0");
  if (shape.maxRows > 0) refuse("maxRows", "0");
  if (shape.alignment > 1) refuse("alignment", "0 or 1");
  if (shape.quantises()) refuse("wire", "0");
  if (shape.algorithm != nullptr) refuse("algorithm", "NULL: schedules have collectives instead");
  if (shape.choices > shape.experts.count)
    refuse("topK", "at most config.experts, " + std::to_string(shape.experts.count));
  if (shape.experts.count % its.nEp != 0)
    refuse("experts", "a multiple of the grid's nEp, " + std::to_string(its.nEp));
  if (config.learn == 1 && onGpu) refuse("learn", "0 on GPUs, where phases are not timed");
  shape.scheduled = true;
  if (shape.schedule == moecclScheduleAuto) {
    const char* const environment = std::getenv("MOECCL_SCHEDULE");
    moecclMoeConfig_t none = MOECCL_MOE_CONFIG_INITIALIZER;
    shape.schedule = requestedSchedule(none, environment);
  }
  if (const char* against = whyNotAround(shape.schedule, its, config.training == 1))
    invalid(std::string("config.schedule, or MOECCL_SCHEDULE, is ") + nameOf(shape.schedule) +
            "; " + against);
  shape.capacityFactor = config.capacityFactor;
  shape.capacityGroups = config.capacityGroups;
  shape.minCapacity = config.minCapacity;
  shape.expertElements = config.expertElements;
  shape.training = config.training == 1;
  shape.learn = config.learn == 1;
}

}  // namespace

RouteShape routeShapeOf(const moecclRouteConfig_t* theirs, const Grid& grid, bool onGpu) {
  const moecclRouteConfig_t config = readStruct(kRouteConfig, theirs);
  requireBetween("experts", config.experts, 1, routes::kMostExperts);
  requireBetween("topK", config.topK, 1, routes::kMostChoices);
  requireBetween("weights", config.weights, 0, moecclRouteNumWeights - 1);
  // So that a row has an address whatever its elements are.
  requireBetween("hidden", config.hidden, 1, std::numeric_limits<std::int32_t>::max());
  const bool latency = placeOf("mode", config.mode, kModes) == 1;
  if (config.weights == moecclRouteWeightsRows && (latency || onGpu))
    invalid(
        "config.weights is moecclRouteWeightsRows; weights travel with rows in throughput mode "
        "on hosts alone, so it must be moecclRouteWeightsCombine or None");
  requireBetween("maxTokens", config.maxTokens, latency ? 1 : 0,
                 latency ? kMostLatencyTokens : std::numeric_limits<std::int64_t>::max());
  const int algorithm = placeOf("algorithm", config.algorithm, algorithmNames());
  RouteShape shape{
      {grid, config.experts},
      config.topK,
      config.hidden,
      config.maxTokens,
      static_cast<int>(config.tokenDatatype) == 0 ? config.datatype : config.tokenDatatype,
      config.datatype,
      config.weights,
      algorithm == 0 ? nullptr : &routes::routeAlgorithms()[algorithm - 1],
      latency,
      bucketsOf(config, latency)};
  readRows(config, onGpu, shape);
  readSchedule(config, grid, onGpu, shape);
  checkDatatypes(shape);
  return shape;
}

void requireSameShape(Communicator& communicator, const RouteShape& shape) {
  struct Field {
    const char* name;
    std::int64_t value;
    std::string (*text)(std::int64_t) = [](std::int64_t value) { return std::to_string(value); };
  };
  const auto algorithms = routes::routeAlgorithms();
  const std::array fields = {
      Field{"experts", shape.experts.count},
      Field{"topK", shape.choices},
      Field{"weights", shape.weights, weightsText},
      Field{"datatype", shape.datatype, typeText},
      Field{"tokenDatatype", shape.tokenDatatype, typeText},
      Field{"hidden", shape.hidden},
      Field{"mode", shape.latency ? 1 : 0, modeText},
      Field{"maxTokens", shape.maxTokens},
      Field{"numBuckets", std::ssize(shape.buckets)},
      Field{"sharedTokens", shape.sharedTokens ? 1 : 0},
      Field{"schedule (config.schedule, or MOECCL_SCHEDULE)", shape.schedule, scheduleText},
      Field{"capacityFactor", std::bit_cast<std::int64_t>(shape.capacityFactor),
            [](std::int64_t bits) { return numberText(std::bit_cast<double>(bits)); }},
      Field{"capacityGroups", shape.capacityGroups},
      Field{"minCapacity", shape.minCapacity},
      Field{"expertElements", shape.expertElements},
      Field{"training", shape.training ? 1 : 0},
      Field{"learn", shape.learn ? 1 : 0},
      Field{"rowsByToken", shape.rowsByToken ? 1 : 0},
      Field{"maxRows", shape.maxRows},
      Field{"alignment", shape.alignment},
      Field{"wire", shape.wire, wireText},
      Field{"algorithm", shape.algorithm == nullptr ? 0 : shape.algorithm - algorithms.data() + 1,
            algorithmText}};
  std::array<std::int64_t, fields.size()> mine{};
  std::ranges::transform(fields, mine.begin(), &Field::value);
  requireSameValues(
      communicator, mine, [&](std::size_t place) { return std::string(fields[place].name); },
      [&](std::size_t place, std::int64_t value) { return fields[place].text(value); });
  if (shape.buckets.empty()) return;
  requireSameValues(
      communicator, shape.buckets,
      [](std::size_t place) { return "buckets[" + std::to_string(place) + "]"; },
      [](std::size_t, std::int64_t value) { return std::to_string(value); });
}

}  // namespace moeccl
