#include "src/moe/moe_layer.h"

#include <array>
#include <bit>
#include <string>

#include "moeccl/model.h"
#include "src/error.h"

namespace moeccl {
namespace {

constexpr std::array<const char*, 11> kFields = {
    "tokens",         "embedding",  "hidden",   "experts",  "topK",     "capacityFactor",
    "capacityGroups", "activation", "datatype", "schedule", "training",
};
using Fields = std::array<std::int64_t, kFields.size()>;

Fields fieldsOf(const moecclMoeConfig_t& config, const char* environment) {
  // A schedule that no rank could run is this rank's alone to report, once all have compared.
  std::int64_t schedule = -1;
  try {
    schedule = requestedSchedule(config, environment);
  } catch (const Error&) {
  }
  return {config.tokens,         config.embedding,
          config.hidden,         config.experts,
          config.topK,           std::bit_cast<std::int64_t>(config.capacityFactor),
          config.capacityGroups, config.activation,
          config.datatype,       schedule,
          config.training};
}

std::string textOf(std::size_t field, std::int64_t value) {
  if (std::string(kFields[field]) == "capacityFactor")
    return std::to_string(std::bit_cast<double>(value));
  return std::to_string(value);
}

void requireSameConfig(const Groups& groups, const Fields& mine) {
  const Group& world = groups.world;
  std::vector<Fields> all(static_cast<std::size_t>(world.ranks));
  const moecclResult_t result =
      moecclAllGather(mine.data(), all.data(), mine.size(), moecclInt64, world.comm, nullptr);
  if (result != moecclSuccess) throw Error(result, moecclGetLastError(world.comm));
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    for (std::size_t field = 0; field < kFields.size(); ++field)
      if (all[rank][field] != all[0][field])
        throw Error(moecclInvalidUsage, std::string("ranks came with different configs: ") +
                                            kFields[field] + " is " + textOf(field, all[0][field]) +
                                            " on rank 0 and " + textOf(field, all[rank][field]) +
                                            " on rank " + std::to_string(rank));
}

Groups comparedGroups(moecclGrid_t grid, const moecclMoeConfig_t& config, const char* environment) {
  const Groups groups = groupsOf(grid);
  requireSameConfig(groups, fieldsOf(config, environment));
  return groups;
}

std::unique_ptr<Schedule> scheduleOf(const LayerShape& shape, const Groups& groups) {
  switch (shape.schedule) {
    case moecclScheduleBaseline:
      return baselineSchedule(shape, groups);
    case moecclScheduleS1:
      return s1Schedule(shape, groups);
    case moecclScheduleS2:
      return s2Schedule(shape, groups);
    case moecclSchedulePpMoe:
      return ppMoeSchedule(shape, groups);
    default:
      throw Error(moecclInternalError, "no such schedule");
  }
}

// The requested schedule, or the one that the library predicts to be the fastest.
moecclSchedule_t chosenSchedule(const Groups& groups, const moecclMoeConfig_t& config,
                                const char* environment) {
  const moecclSchedule_t requested = requestedSchedule(config, environment);
  if (requested != moecclScheduleAuto) return requested;
  layerShape(config, requested, groups.shape);  // what is wrong with the config is ours to say
  moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
  cluster.grid = groups.grid;
  moecclScheduleQuery_t query = MOECCL_SCHEDULE_QUERY_INITIALIZER;
  query.cluster = &cluster;
  query.layer = &config;
  query.pass = config.training ? moecclPassBoth : moecclPassForward;
  moecclScheduleChoice_t first;
  int room = 1;
  const moecclResult_t result = moecclSelectSchedule(&query, &first, &room);
  if (result != moecclSuccess) throw Error(result, moecclGetLastError(nullptr));
  return first.schedule;
}

}  // namespace

MoeLayer::MoeLayer(moecclGrid_t grid, const moecclMoeConfig_t& config, const char* environment)
    : groups_(comparedGroups(grid, config, environment)),
      shape_(layerShape(config, chosenSchedule(groups_, config, environment), groups_.shape)),
      schedule_(scheduleOf(shape_, groups_)),
      sums_(shape_) {
  stats_.first.resize(static_cast<std::size_t>(shape_.experts));
  stats_.assigned.resize(static_cast<std::size_t>(shape_.experts));
  stats_.kept.resize(static_cast<std::size_t>(shape_.experts));
  probabilityGradients_.resize(static_cast<std::size_t>(shape_.experts));
}

moecclResult_t MoeLayer::forward(const float* input, float* output, moecclStream_t stream) {
  hasStats_ = false;
  failedPhase_ = "the stream's earlier work";
  moecclResult_t result = moecclStreamSynchronize(stream);
  if (result != moecclSuccess) return result;
  result = schedule_->forward(weights_, input, output, sums_);
  failedPhase_ = schedule_->failedPhase();
  if (result != moecclSuccess) return result;
  summarise(shape_, sums_, &stats_);
  hasStats_ = true;
  return moecclSuccess;
}

moecclResult_t MoeLayer::backward(const float* outputGradient, double auxiliaryLossScale,
                                  float* inputGradient, moecclStream_t stream) {
  failedPhase_ = "the stream's earlier work";
  moecclResult_t result = moecclStreamSynchronize(stream);
  if (result != moecclSuccess) return result;
  auxiliaryLossBackward(shape_, stats_, auxiliaryLossScale, probabilityGradients_.data());
  result = schedule_->backward(weights_, outputGradient, probabilityGradients_.data(), gradients_,
                               inputGradient);
  failedPhase_ = schedule_->failedPhase();
  return result;
}

}  // namespace moeccl
