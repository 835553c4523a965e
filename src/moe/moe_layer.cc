#include "src/moe/moe_layer.h"

#include <algorithm>
#include <string>
#include <vector>

#include "moeccl/select.h"
#include "src/error.h"
#include "src/moe/compute_cpu.h"
#include "src/moe/compute_cuda.h"
#include "src/moe/schedule_list.h"
#include "src/moe/schedule_terms.h"

namespace moeccl {
namespace {

// Rows of the experts at a time.
std::int64_t rowsAtOnce(const schedules::Schedule& schedule, const schedules::Sizes& sizes) {
  std::int64_t rows = 0;
  for (const schedules::Phase& phase : schedule.phases) {
    if (phase.kind != schedules::Kind::experts) continue;
    const schedules::Shape& shape = schedule.tables[static_cast<std::size_t>(phase.reads[0])].shape;
    if (std::ranges::any_of(shape, schedules::boundLate)) continue;
    rows = std::max(rows, std::ranges::count(shape, schedules::Dim::keptRows) > 0
                              ? sizes.at(schedules::Dim::tokens)
                              : sizes.elements(std::span(shape).first(shape.size() - 1)));
  }
  return rows;
}

// The requested schedule and chunks, or those that the library predicts to be the fastest.
LayerShape chosenShape(const Groups& groups, moecclMoeConfig_t config, moecclSchedule_t requested) {
  const LayerShape shape = layerShape(config, requested, groups.shape);  // says what is wrong
  const bool cuts = requested != moecclScheduleAuto && config.chunks == 0 &&
                    shape.groups > groups.shape.nMp && !shape.dropless && cutsChunks(requested);
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
                   bool onGpu)
    : groups_(groupsOf(grid)),
      shape_(chosenShape(groups_, config, requested)),
      compute_(onGpu ? cudaCompute(shape_) : cpuCompute(shape_)),
      forward_(valueOf(shape_, Pass::forward)),
      backward_(shape_.training ? &valueOf(shape_, Pass::backward) : nullptr),
      sizes_(sizesOf(shape_, forward_)),
      executor_(forward_, backward_, sizes_, groups_, *compute_),
      work_(groups_, *compute_, forward_, shape_.training),
      pass_(executor_, work_),
      stats_(*compute_),
      choices_(*compute_),
      passed_(compute_->mark()) {
  compute_->reserveRows(rowsAtOnce(forward_, sizes_));
  compute_->await(nullptr);  // what has been cleared
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
  work_.setWeights(ours);
}

moecclStream_t MoeLayer::begin(moecclStream_t stream) {
  if (compute_->onStreams()) {
    compute_->requireUsable(stream);
    passed_->holdUp(stream);
    return stream;
  }
  const moecclResult_t result = moecclStreamSynchronize(stream);
  if (result != moecclSuccess)
    throw Error(result, std::string("the stream's earlier work: ") + moecclGetLastError(nullptr));
  return nullptr;
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
void MoeLayer::run(moecclStream_t stream, Start start, End end) {
  guard(pass_, begin(stream), [&](moecclStream_t on) {
    start(on);
    while (pass_.advance()) runExperts(on);
    end(on);
  });
}

void MoeLayer::runExperts(moecclStream_t stream) {
  const schedules::ExpertsStep& step = pass_.experts();
  const std::int64_t most = compute_->expertsAtOnce(), experts = std::ssize(step.begins) - 1;
  const LayerWeights& weights = work_.weights();
  for (const schedules::ExpertRun& run : step.copies) {
    const std::int64_t begins[] = {0, run.count}, at = run.begin * shape_.embedding;
    compute_->expertBackward(weights, run.counts ? work_.gradients() : LayerGradients{},
                             {run.expert, begins}, compute_->at(step.given, at),
                             compute_->at(step.gradients, at), stream);
    pass_.progress();
  }
  for (std::int64_t first = 0; first < experts && step.copies.empty(); first += most) {
    const std::int64_t count = std::min(most, experts - first);
    const ExpertRows rows{
        step.first + first,
        step.begins.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count) + 1)};
    if (step.backward)
      compute_->expertBackward(weights, work_.gradients(), rows, step.given, step.gradients,
                               stream);
    else
      compute_->expertForward(weights, rows, step.given, step.made, stream);
    pass_.progress();
  }
}

// What is queued belongs to the pass all the same, and the next one comes after it.
void MoeLayer::abandon(schedules::PassRun& pass, moecclStream_t stream) {
  try {
    pass.abandon();
    passed_->set(stream);
  } catch (const Error&) {  // what failed before is what is told
  }
}

void MoeLayer::forward(const void* input, void* output, moecclStream_t stream) {
  const auto start = [&](moecclStream_t on) {
    hasStats_ = false;
    work_.setStep(step_);
    pass_.start(Pass::forward, input, output, on);
  };
  run(stream, start, [&](moecclStream_t on) {
    stats_.summarise(work_.batchSums(), on);
    choices_.add(work_.batchSums(), on);
  });
  hasStats_ = true;
  ++step_;
}

void MoeLayer::backward(const void* outputGradient, double auxiliaryLossScale, void* inputGradient,
                        moecclStream_t stream) {
  const auto start = [&](moecclStream_t on) {
    pass_.start(Pass::backward, outputGradient, inputGradient, on);
    work_.setSumGradients(stats_.lossBackward(auxiliaryLossScale, on));
  };
  run(stream, start, [](moecclStream_t) {});
}

template <typename Start>
void MoeLayer::half(OwnPass& pass, OwnPass::Stage from, OwnPass::Stage to, moecclStream_t stream,
                    Start start) {
  if (pass.stage != from)
    throw Error(
        moecclInvalidUsage,
        "the pass is not there yet, or past it, or has failed; the order is moecclMoeBegin, End, "
        "EndBackward, BeginBackward");
  pass.stage = OwnPass::Stage::failed;
  guard(pass.run, begin(stream), [&](moecclStream_t on) {
    start(on);
    pass.run.advance();
  });
  pass.stage = to;
}

OwnPass& MoeLayer::beginOwn(const void* input, const OwnRouting& routing, moecclStream_t stream) {
  requireOwnPasses(shape_);
  if (!compute_->onStreams()) requireExperts(shape_, routing);
  if (!own_) own_.emplace(forward_, backward_, sizes_, groups_, *compute_);
  auto free = std::ranges::find(passes_, OwnPass::Stage::free,
                                [](const std::unique_ptr<OwnPass>& pass) { return pass->stage; });
  if (free == passes_.end()) {
    passes_.push_back(std::make_unique<OwnPass>(*own_, *compute_));
    free = passes_.end() - 1;
  }
  OwnPass& pass = **free;
  try {
    half(pass, OwnPass::Stage::free, OwnPass::Stage::begun, stream, [&](moecclStream_t on) {
      pass.work.setRouting(routing);
      pass.run.start(Pass::forward, input, nullptr, on);
    });
  } catch (...) {
    close(pass);
    throw;
  }
  return pass;
}

void MoeLayer::end(OwnPass& pass, void* output, moecclStream_t stream) {
  half(pass, OwnPass::Stage::begun, OwnPass::Stage::ended, stream, [&](moecclStream_t on) {
    pass.run.setStream(on);
    pass.run.setOutput(output);
  });
}

void MoeLayer::endBackward(OwnPass& pass, const void* outputGradient, moecclStream_t stream) {
  half(pass, OwnPass::Stage::ended, OwnPass::Stage::endedBackward, stream,
       [&](moecclStream_t on) { pass.run.start(Pass::backward, outputGradient, nullptr, on); });
}

void MoeLayer::beginBackward(OwnPass& pass, void* inputGradient, void* weightGradients,
                             moecclStream_t stream) {
  half(pass, OwnPass::Stage::endedBackward, OwnPass::Stage::ended, stream, [&](moecclStream_t on) {
    pass.run.setStream(on);
    pass.run.setOutput(inputGradient);
    pass.work.setWeightGradients(weightGradients);
  });
}

const BatchStats& MoeLayer::stats() {
  stats_.read();
  return stats_;
}

void MoeLayer::updateBias(double* bias, double speed) {
  passed_->await();
  // The ranks of an MP group count the same tokens; N_MP times as many choices of each expert have
  // the same experts above their mean.
  const auto experts = static_cast<std::size_t>(shape_.experts);
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
  gates::updateBias(counts.data(), shape_.experts, speed, updated.data());
  compute_->fromHost(bias, updated.data(), bytes, nullptr);
  choices_.clear(nullptr);
  compute_->await(nullptr);
}

}  // namespace moeccl
