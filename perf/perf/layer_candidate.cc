// Makes a layer under one setting and runs its passes. Grids are made once for each shape and
// setting of algorithms.
#include "perf/perf/layer_candidate.h"

#include <moeccl/model.h>

#include "perf/common/choices.h"

namespace moeccl::perf::layers {
namespace {

// Weighs the auxiliary loss as in Switch and GShard.
constexpr double kAuxiliaryLossScale = 0.01;

}  // namespace

const GridOfSetting& Grids::get(const moecclGridShape_t& shape, const std::string& algorithms) {
  const std::pair key(std::vector<int>{shape.nMp, shape.nEp, shape.nEsp, shape.order}, algorithms);
  if (const auto found = made_.find(key); found != made_.end()) return found->second;

  moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
  if (!algorithms.empty()) config.algorithms = algorithms.c_str();
  moecclComm_t comm = nullptr;
  require(moecclCommSplit(job_.comm(), 0, job_.rank(), &comm, &config),
          ("split with \"" + algorithms + "\"").c_str(), job_.comm());
  GridOfSetting& made = made_[key];
  made.comm.reset(comm);
  moecclGrid_t grid = nullptr;
  require(moecclGridCreate(comm, shape, &grid), "make the grid", comm);
  made.grid.reset(grid);
  return made;
}

LayerCandidate::LayerCandidate(const Layer& layer, const Setting& setting, moecclPass_t pass,
                               Grids& grids, bool learns)
    : setting_(setting),
      config_(layer.config(setting.schedule, pass)),
      backward_((pass & moecclPassBackward) != 0) {
  config_.learn = learns ? 1 : 0;
  const GridOfSetting& place = grids.get(layer.grid, setting.algorithms);
  comm_ = place.comm.get();
  grid_ = place.grid.get();
  gathers_ = layer.grid.nMp > 1;
  config_.tokenRouting = setting.tokenRouting;
  moecclMoeLayer_t handle = nullptr;
  const moecclResult_t result = moecclMoeLayerCreate(grid_, &config_, &handle);
  // What is wrong with the layer itself is wrong under the baseline too.
  if (result == moecclInvalidArgument &&
      (setting.schedule > moecclScheduleBaseline || setting.tokenRouting != 0))
    reason_ = moecclGetLastError(nullptr);
  else
    require(result, "make the layer", nullptr);
  handle_.reset(handle);
}

moecclMoeShapes_t LayerCandidate::shapes() const {
  moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
  require(moecclMoeLayerGetShapes(handle_.get(), &shapes), "ask for the shapes", nullptr);
  return shapes;
}

LayerCandidate::Work LayerCandidate::work() const {
  moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
  cluster.grid = grid_;
  moecclMoeConfig_t config = config_;
  config.schedule = shapes().schedule;
  if (config.dropless == 1) config.tokenRouting = shapes().tokenRouting == 1 ? 1 : -1;
  moecclQuery_t query = MOECCL_QUERY_INITIALIZER;
  query.cluster = &cluster;
  query.layer = &config;
  query.pass = backward_ ? moecclPassBoth : moecclPassForward;
  // Where MP groups have one rank there is nothing to gather: S2 is S1.
  const bool asS1 = !gathers_ && config.schedule == moecclScheduleS2;
  Work work{asS1 ? moecclScheduleS1 : config.schedule, {}};
  for (const moecclChoice_t& exchange : Choices(query).exchanges(0))
    work.exchanges.push_back(
        {exchange.pass, exchange.group, exchange.bytes, exchange.calls, exchange.digest});
  return work;
}

void LayerCandidate::setData(Data& data) {
  data_ = &data;
  require(moecclMoeLayerSetWeights(handle_.get(), &data.weights()), "set the weights", nullptr);
  if (backward_)
    require(moecclMoeLayerSetGradients(handle_.get(), &data.gradients()), "set the gradients",
            nullptr);
}

void LayerCandidate::run(int count) {
  for (int i = 0; i < count; ++i) {
    require(moecclMoeForward(handle_.get(), data_->input(), data_->output(), nullptr),
            setting_.name().c_str(), nullptr);
    if (backward_)
      require(moecclMoeBackward(handle_.get(), data_->outputGradient(), kAuxiliaryLossScale,
                                data_->inputGradient(), nullptr),
              setting_.name().c_str(), nullptr);
  }
}

void LayerCandidate::barrier() {
  int ranks = 0;
  require(moecclCommCount(comm_, &ranks), "count the ranks", comm_);
  const signed char mine = 0;
  std::vector<signed char> all(static_cast<std::size_t>(ranks));
  require(moecclAllGather(&mine, all.data(), 1, moecclInt8, comm_, nullptr), "barrier", comm_);
}

}  // namespace moeccl::perf::layers
