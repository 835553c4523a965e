#include "src/moe/moe_layer.h"

#include <algorithm>
#include <string>
#include <vector>

#include "moeccl/model.h"
#include "src/error.h"
#include "src/moe/compute_cpu.h"
#include "src/moe/compute_cuda.h"

namespace moeccl {
namespace {

std::unique_ptr<Compute> computeOf(moecclMemory_t memory, const LayerShape& shape) {
  return memory == moecclMemoryCuda ? cudaCompute(shape) : cpuCompute(shape);
}

std::unique_ptr<Schedule> beside(std::unique_ptr<Schedule> schedule, const Groups& groups,
                                 Compute& compute) {
  if (compute.shape().residual == 0) return schedule;
  return withResidual(std::move(schedule), groups, compute);
}

std::unique_ptr<Schedule> scheduleOf(const Groups& groups, Compute& compute) {
  const bool dropless = compute.shape().dropless;
  switch (compute.shape().schedule) {
    case moecclScheduleBaseline:
      return beside(
          dropless ? droplessBaselineSchedule(groups, compute) : baselineSchedule(groups, compute),
          groups, compute);
    case moecclScheduleS1:
      return dropless ? droplessS1Schedule(groups, compute) : s1Schedule(groups, compute);
    case moecclScheduleS2:
      return beside(s2Schedule(groups, compute), groups, compute);
    case moecclSchedulePpMoe:
      return ppMoeSchedule(groups, compute);
    default:
      throw Error(moecclInternalError, "no such schedule");
  }
}

// The requested schedule and chunks, or those that the library predicts to be the fastest.
LayerShape chosenShape(const Groups& groups, moecclMoeConfig_t config, moecclSchedule_t requested) {
  const LayerShape shape = layerShape(config, requested, groups.shape);  // says what is wrong
  const bool cuts = requested == moecclScheduleS1 && config.chunks == 0 &&
                    shape.groups > groups.shape.nMp && !shape.dropless;
  if (requested != moecclScheduleAuto && !cuts) return shape;
  moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
  cluster.grid = groups.grid;
  moecclScheduleQuery_t query = MOECCL_SCHEDULE_QUERY_INITIALIZER;
  query.cluster = &cluster;
  query.layer = &config;
  query.pass = config.training ? moecclPassBoth : moecclPassForward;
  moecclScheduleChoices_t choices = nullptr;
  moecclScheduleChoice_t first = MOECCL_SCHEDULE_CHOICE_INITIALIZER;
  moecclResult_t result = moecclSelectSchedule(&query, &choices);
  if (result == moecclSuccess) result = moecclScheduleChoicesGet(choices, 0, &first);
  moecclScheduleChoicesDestroy(choices);
  if (result != moecclSuccess) throw Error(result, moecclGetLastError(nullptr));
  config.chunks = first.chunks;
  return layerShape(config, first.schedule, groups.shape);
}

}  // namespace

MoeLayer::MoeLayer(moecclGrid_t grid, const moecclMoeConfig_t& config, moecclSchedule_t requested,
                   moecclMemory_t memory)
    : groups_(groupsOf(grid)),
      shape_(chosenShape(groups_, config, requested)),
      compute_(computeOf(memory, shape_)),
      schedule_(scheduleOf(groups_, *compute_)),
      sums_(*compute_),
      stats_(*compute_),
      choices_(*compute_),
      passed_(compute_->mark()) {
  compute_->await(nullptr);  // what has been cleared
}

MoeLayer::~MoeLayer() {
  try {
    passed_->await();
  } catch (...) {  // whoever waited for the stream knows
  }
}

void MoeLayer::setWeights(const LayerWeights& weights) {
  weights_ = weights;
  // One of the summands of an expert's shards brings the second bias.
  if (groups_.esp.rank != 0) weights_.b2 = nullptr;
}

moecclResult_t MoeLayer::begin(moecclStream_t& stream) {
  schedule_->beginPass();
  if (compute_->onStreams()) {
    compute_->requireUsable(stream);
    passed_->holdUp(stream);
    return moecclSuccess;
  }
  const moecclResult_t result = moecclStreamSynchronize(stream);
  if (result != moecclSuccess) keepFailure("the stream's earlier work");
  stream = nullptr;
  return result;
}

template <typename Pass>
moecclResult_t MoeLayer::run(moecclStream_t stream, Pass pass) {
  moecclResult_t result = begin(stream);
  if (result != moecclSuccess) return result;
  try {
    result = pass(stream);
    if (result == moecclSuccess) passed_->set(stream);
  } catch (const Error& e) {
    const std::string last = schedule_->lastPhase();
    abandon(stream);
    throw Error(e.result(), (last.empty() ? "" : "after " + last + ": ") + e.what());
  }
  if (result == moecclSuccess) return result;
  keepFailure(schedule_->failedPhase());
  abandon(stream);
  return result;
}

// Before anything else fails on this thread.
void MoeLayer::keepFailure(const char* phase) {
  failure_ = std::string(phase) + ": " + moecclGetLastError(nullptr);
}

// What is queued belongs to the pass all the same, and the next one comes after it.
void MoeLayer::abandon(moecclStream_t stream) {
  try {
    schedule_->abandon(stream);
    passed_->set(stream);
  } catch (const Error&) {  // what failed before is what is told
  }
}

moecclResult_t MoeLayer::forward(const void* input, void* output, moecclStream_t stream) {
  const moecclResult_t result = run(stream, [&](moecclStream_t on) {
    hasStats_ = false;
    const moecclResult_t passed = schedule_->forward(weights_, step_, input, output, sums_, on);
    if (passed != moecclSuccess) return passed;
    stats_.summarise(sums_, on);
    choices_.add(sums_, on);
    return passed;
  });
  if (result != moecclSuccess) return result;
  hasStats_ = true;
  ++step_;
  return moecclSuccess;
}

moecclResult_t MoeLayer::backward(const void* outputGradient, double auxiliaryLossScale,
                                  void* inputGradient, moecclStream_t stream) {
  return run(stream, [&](moecclStream_t on) {
    return schedule_->backward(weights_, outputGradient,
                               stats_.lossBackward(auxiliaryLossScale, on), gradients_,
                               inputGradient, on);
  });
}

const BatchStats& MoeLayer::stats() {
  stats_.read();
  return stats_;
}

moecclResult_t MoeLayer::updateBias(double* bias, double speed) {
  passed_->await();
  // The ranks of an MP group count the same tokens; N_MP times as many choices of each expert have the
  // same experts above their mean.
  const auto experts = static_cast<std::size_t>(shape_.experts);
  const moecclResult_t result =
      moecclAllReduce(choices_.counts(), choices_.spare(), experts, moecclFloat64, moecclSum,
                      groups_.world.comm, nullptr);
  if (result != moecclSuccess) {
    keepFailure("AllReduce of the choices per expert");
    return result;
  }
  std::vector<double> counts(experts), updated(experts);
  const std::size_t bytes = experts * sizeof(double);
  compute_->toHost(counts.data(), choices_.spare(), bytes, nullptr);
  compute_->toHost(updated.data(), bias, bytes, nullptr);
  gates::updateBias(counts.data(), shape_.experts, speed, updated.data());
  compute_->fromHost(bias, updated.data(), bytes, nullptr);
  choices_.clear(nullptr);
  compute_->await(nullptr);
  return moecclSuccess;
}

}  // namespace moeccl
