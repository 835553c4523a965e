// Runs the passes of a layer: chooses its schedule, has the experts computed where a pass stops,
// keeps statistics of the batch, and saves and restores what was learned.
#include "src/route/moe_layer.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "moeccl/model.h"
#include "src/base/boundary.h"
#include "src/base/error.h"
#include "src/model/schedule_list.h"
#include "src/model/schedule_terms.h"
#include "src/route/question.h"

namespace moeccl {
namespace {

bool severalNodes(const Groups& groups) {
  int first = 0, node = 0;
  requireSuccess(moecclCommNodeOfRank(groups.world.comm, 0, &first));
  for (int rank = 1; rank < groups.world.ranks; ++rank) {
    requireSuccess(moecclCommNodeOfRank(groups.world.comm, rank, &node));
    if (node != first) return true;
  }
  return false;
}

// The requested schedule and chunks, or those that the library predicts to be the fastest.
LayerShape chosenShape(const Groups& groups, moecclMoeConfig_t config, moecclSchedule_t requested,
                       bool onGpu) {
  const LayerShape shape = layerShape(config, requested, groups.shape);  // says what is wrong
  // No prediction knows for how long counts and a routing make the host wait on GPUs.
  if (onGpu && config.chunks == 0 && shape.dropless) config.chunks = 1;
  if (onGpu && config.tokenRouting == 0 && shape.dropless) config.tokenRouting = -1;
  const bool cuts = requested != moecclScheduleAuto && config.chunks == 0 &&
                    (shape.dropless || shape.groups > groups.shape.nMp) &&
                    cutsChunks(requested, shape.dropless, shape.routed);
  const bool mayRoute = requested != moecclScheduleAuto && config.tokenRouting == 0 && !onGpu &&
                        routesUnder(requested, shape) && severalNodes(groups);
  if (requested != moecclScheduleAuto && !cuts && !mayRoute) return shape;
  const LayerQuery query(groups.grid, config);
  moecclChoices_t choices = nullptr;
  moecclChoice_t first = MOECCL_CHOICE_INITIALIZER;
  moecclResult_t result = moecclSelect(query.get(), &choices, nullptr);
  if (result == moecclSuccess) result = moecclChoicesGet(choices, 0, -1, &first);
  moecclChoicesDestroy(choices);
  if (result != moecclSuccess) throw Error(result, moecclGetLastError(nullptr));
  config.chunks = first.chunks;
  if (shape.dropless) config.tokenRouting = first.tokenRouting == 1 ? 1 : -1;
  return layerShape(config, first.schedule, groups.shape);
}

}  // namespace

MoeLayer::Running::Running(const Groups& groups, std::shared_ptr<Compute> with, bool timed)
    : compute(std::move(with)), work(groups, *compute), pass(work, memory, memory) {
  if (timed) pass.takeTimes();
}

MoeLayer::MoeLayer(moecclGrid_t grid, const moecclMoeConfig_t& config, moecclSchedule_t requested,
                   bool onGpu, MakeCompute make, const Candidates& candidates)
    : config_(config),
      requested_(requested),
      make_(make),
      groups_(groupsOf(grid)),
      compute_(make(chosenShape(groups_, config, requested, onGpu))),
      stats_(*compute_),
      choices_(*compute_),
      passed_(compute_->mark()) {
  const LayerShape& first = compute_->shape();
  if (config.learn == 1 && onGpu)
    throw Error(moecclInvalidArgument,
                "config.learn is 1; layers on GPUs do not time their phases, so it must be 0");
  if (config.learn == 1 && requested == moecclScheduleAuto)
    learning_ = learningOf(groups_, *compute_, config, first, candidates());
  if (learning_ != nullptr) now_ = learning_->learner().current();
  running_.resize(now_ + 1);
  if (learning_ != nullptr) running_.resize(learning_->learner().alternatives().size());
  running_[now_] = std::make_shared<Running>(groups_, compute_, learning_ != nullptr);
  last_ = prepared_ = now_;
}

bool MoeLayer::mayRoute() const {
  if (config_.tokenRouting < 0 || !routesSomehow(shape())) return false;
  return config_.tokenRouting > 0 || (!compute_->onStreams() && severalNodes(groups_));
}

void MoeLayer::makeRoute() {
  route_ =
      schedules::routeFor(groups_, static_cast<int>(shape().experts),
                          static_cast<int>(shape().choices), shape().embedding, shape().datatype);
  running_[now_]->pass.setRoute(route_.get());
}

MoeLayer::~MoeLayer() {
  try {
    passed_->await();
  } catch (...) {  // whoever waited for the stream knows
  }
}

void MoeLayer::setWeights(const LayerWeights& weights) {
  LayerWeights ours = weights;
  // One of the summands of an expert's shards brings the second bias.
  if (groups_.esp.rank != 0) ours.b2 = nullptr;
  weights_ = ours;
}

bool MoeLayer::prepare(std::size_t alternative) {
  prepared_ = alternative;
  if (running_[alternative] != nullptr) return true;
  try {
    running_[alternative] =
        std::make_shared<Running>(groups_, make_(learning_->shape(alternative)), true);
    running_[alternative]->pass.setRoute(route_.get());
    return true;
  } catch (const std::exception&) {  // there is no memory for it, so there is no change
    return false;
  }
}

MoeLayer::Running& MoeLayer::beginStep() {
  if (learning_ != nullptr) {
    learning_->begin([this](std::size_t alternative) { return prepare(alternative); });
    now_ = learning_->learner().running();
    dropUnused();
  }
  return *running_[now_];
}

void MoeLayer::dropUnused() {
  const std::size_t current = learning_->learner().current();
  for (std::size_t i = 0; i < running_.size(); ++i)
    if (running_[i] != nullptr && i != now_ && i != current && i != last_ && i != prepared_)
      running_[i].reset();
}

void MoeLayer::record(std::size_t alternative, Pass pass, const schedules::PassRun& run) {
  if (learning_ != nullptr) learning_->learner().record(alternative, pass, run.times());
}

template <typename Start>
void MoeLayer::guard(schedules::PassRun& pass, moecclStream_t stream, Start start) {
  try {
    start(stream);
    passed_->set(stream);
  } catch (const schedules::ExchangeError&) {
    abandon(pass, stream);
    throw;
  } catch (const Error& e) {
    const std::string last = pass.lastExchange();
    abandon(pass, stream);
    throw Error(e.result(), (last.empty() ? "" : "after " + last + ": ") + e.what());
  } catch (...) {
    abandon(pass, stream);
    throw;
  }
}

template <typename Start, typename End>
void MoeLayer::run(Running& running, moecclStream_t stream, Start start, End end) {
  guard(running.pass, stream, [&](moecclStream_t on) {
    running.work.setWeights(weights_);
    running.work.setGradients(gradients_);
    start(on);
    while (running.pass.advance()) runExperts(running, on);
    end(on);
  });
}

void MoeLayer::runExperts(Running& running, moecclStream_t stream) {
  const schedules::ExpertsStep& step = running.pass.experts();
  Compute* const compute = running.compute.get();
  const std::int64_t most = compute->expertsAtOnce(), experts = std::ssize(step.begins) - 1;
  for (const schedules::ExpertRun& run : step.copies) {
    const std::int64_t begins[] = {0, run.count}, at = run.begin * running.work.shape().embedding;
    compute->expertBackward(weights_, run.counts ? gradients_ : LayerGradients{},
                            {run.expert, begins}, compute->at(step.given, at),
                            compute->at(step.gradients, at), stream);
    running.pass.progress();
  }
  for (std::int64_t first = 0; first < experts && step.copies.empty(); first += most) {
    const std::int64_t count = std::min(most, experts - first);
    const ExpertRows rows{
        step.first + first,
        step.begins.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count) + 1)};
    if (step.backward)
      compute->expertBackward(weights_, gradients_, rows, step.given, step.gradients, stream);
    else
      compute->expertForward(weights_, rows, step.given, step.made, stream);
    running.pass.progress();
  }
}

// Queued work belongs to the pass all the same, and the next pass comes after it.
void MoeLayer::abandon(schedules::PassRun& pass, moecclStream_t stream) {
  try {
    pass.abandon();
    passed_->set(stream);
  } catch (...) {  // what failed before is what is told
  }
}

void MoeLayer::forward(const void* input, void* output, moecclStream_t stream) {
  const moecclStream_t ready = comeBehind(*compute_, *passed_, stream);
  Running& running = beginStep();
  last_ = now_;
  const auto start = [&](moecclStream_t on) {
    hasStats_ = false;
    running.work.setFirstBatch(firstBatch_);
    running.work.setStep(step_);
    running.pass.start(Pass::forward, {.input = input, .output = output}, on);
  };
  run(running, ready, start, [&](moecclStream_t on) {
    stats_.summarise(running.work.batchSums(), on);
    choices_.add(running.work.batchSums(), on);
  });
  record(last_, Pass::forward, running.pass);
  hasStats_ = true;
  ++step_;
}

void MoeLayer::backward(const void* outputGradient, double auxiliaryLossScale, void* inputGradient,
                        moecclStream_t stream) {
  Running& running = *running_[last_];
  const auto start = [&](moecclStream_t on) {
    running.pass.start(Pass::backward, {.input = outputGradient, .output = inputGradient}, on);
    running.work.setSumGradients(stats_.lossBackward(auxiliaryLossScale, on));
  };
  run(running, comeBehind(*compute_, *passed_, stream), start, [](moecclStream_t) {});
  record(last_, Pass::backward, running.pass);
}

const BatchStats& MoeLayer::stats() {
  stats_.read();
  return stats_;
}

void MoeLayer::updateBias(double* bias, double speed) {
  passed_->await();
  // The ranks of an MP group count the same tokens; N_MP times as many choices of each expert have
  // the same experts above their mean.
  const auto experts = static_cast<std::size_t>(shape().experts);
  const moecclResult_t result =
      moecclAllReduce(choices_.counts(), choices_.spare(), experts, moecclFloat64, moecclSum,
                      groups_.world.comm, nullptr);
  if (result != moecclSuccess)
    throw Error(result,
                std::string("AllReduce of the choices per expert: ") + moecclGetLastError(nullptr));
  std::vector<double> counts(experts), updated(experts);
  const std::size_t bytes = experts * sizeof(double);
  compute_->toHost(counts.data(), choices_.spare(), bytes, nullptr);
  compute_->toHost(updated.data(), bias, bytes, nullptr);
  gates::updateBias(counts.data(), shape().experts, speed, updated.data());
  compute_->fromHost(bias, updated.data(), bytes, nullptr);
  choices_.clear(nullptr);
  compute_->await(nullptr);
}

std::string MoeLayer::explainChoice() const {
  if (learning_ != nullptr) return learning_->learner().explain();
  return LayerQuery(groups_.grid, config_).explanation() + "runs under " +
         nameInChunks(shape().schedule, shape().chunks, shape().routed) +
         (config_.learn == 0 ? ", and does not learn: config.learn is 0\n"
                             : ", and has no other to choose\n");
}

std::string MoeLayer::saveChoice() const {
  if (learning_ != nullptr) return learning_->learner().save();
  return savedChoice(wordOf(config_, groups_.shape),
                     nameInChunks(shape().schedule, shape().chunks, shape().routed));
}

LayerShape MoeLayer::shapeIn(std::string_view text) const {
  const InChunks saved = scheduleIn(text, wordOf(config_, groups_.shape), requested_);
  moecclMoeConfig_t config = config_;
  if (cutsChunks(saved.schedule, shape().dropless, saved.routed)) config.chunks = saved.chunks;
  if (saved.routed && route_ == nullptr)
    throw Error(moecclInvalidUsage, "text is of schedule " +
                                        nameInChunks(saved.schedule, saved.chunks, saved.routed) +
                                        ", but the layer does not route tokens");
  if (shape().dropless) config.tokenRouting = saved.routed ? 1 : -1;
  return layerShape(config, saved.schedule, groups_.shape);
}

std::function<void()> MoeLayer::restoreChoice(std::string_view text) {
  if (learning_ != nullptr) {
    Learner restored = learning_->learner();
    restored.restore(text);
    if (!prepare(restored.current()))
      throw Error(moecclSystemError, "there is no memory for the schedule that was saved");
    return [this, restored = std::move(restored)] {
      learning_->learner() = restored;
      now_ = restored.current();
      hasStats_ = false;
    };
  }
  auto made = std::make_shared<Running>(groups_, make_(shapeIn(text)), false);
  made->pass.setRoute(route_.get());
  return [this, made] {
    running_ = {made};
    now_ = last_ = 0;
    hasStats_ = false;
  };
}

}  // namespace moeccl
