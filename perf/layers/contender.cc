#include "perf/layers/contender.h"

#include <moeccl/model.h>

#include <string_view>

namespace moeccl::perf::layers {
namespace {

// Weighs the auxiliary loss as in Switch and GShard.
constexpr double kAuxiliaryLossScale = 0.01;

// Ranks of a linear all-gather that have all messages in flight at once.
constexpr int kUnthrottled = 17;

void replaceAll(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

// Whether each group of `size` consecutive ranks is on one node.
bool withinNodes(moecclComm_t comm, int size) {
  int ranks = 0, first = 0;
  require(moecclCommCount(comm, &ranks), "count the ranks", comm);
  for (int rank = 0; rank < ranks; ++rank) {
    int node = 0;
    require(moecclCommNodeOfRank(comm, rank, &node), "ask for a node", comm);
    if (rank % size == 0) first = node;
    if (node != first) return false;
  }
  return true;
}

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

Contender::Contender(const Layer& layer, const Setting& setting, moecclPass_t pass, Grids& grids)
    : setting_(setting),
      config_(layer.config(setting.schedule, pass)),
      shape_(layer.grid),
      backward_((pass & moecclPassBackward) != 0) {
  const GridOfSetting& place = grids.get(layer.grid, setting.algorithms);
  comm_ = place.comm.get();
  grid_ = place.grid.get();
  mpWithinNodes_ = withinNodes(comm_, shape_.nMp);
  espWithinNodes_ = shape_.order == moecclOrderEspEp && withinNodes(comm_, shape_.nEsp);
  moecclMoeLayer_t handle = nullptr;
  const moecclResult_t result = moecclMoeLayerCreate(grid_, &config_, &handle);
  // What is wrong with the layer itself is wrong under the baseline too.
  if (result == moecclInvalidArgument && setting.schedule > moecclScheduleBaseline)
    reason_ = moecclGetLastError(nullptr);
  else
    require(result, "make the layer", nullptr);
  handle_.reset(handle);
}

moecclMoeShapes_t Contender::shapes() const {
  moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
  require(moecclMoeLayerGetShapes(handle_.get(), &shapes), "ask for the shapes", nullptr);
  return shapes;
}

std::string Contender::ways() const {
  moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
  cluster.grid = grid_;
  moecclMoeConfig_t config = config_;
  config.schedule = shapes().schedule;
  moecclScheduleQuery_t query = MOECCL_SCHEDULE_QUERY_INITIALIZER;
  query.cluster = &cluster;
  query.layer = &config;
  const bool asS1 = shape_.nMp == 1 && config.schedule == moecclScheduleS2;
  std::string ways = scheduleName(asS1 ? moecclScheduleS1 : config.schedule);
  for (const moecclPass_t pass : {moecclPassForward, moecclPassBackward}) {
    if (pass == moecclPassBackward && !backward_) continue;
    query.pass = pass;
    moecclScheduleChoice_t choice;
    int room = 1;
    require(moecclSelectSchedule(&query, &choice, &room), "ask for the algorithms", nullptr);
    (ways += "; ") += choice.exchanges;
  }
  // One name for one plan: S2's as S1 calls it where MP groups have one rank and there is nothing to gather, dedup's
  // where ESP groups have one and flat sends nothing twice, linear's among two ranks, and where all of an all-gather's
  // are on one node.
  if (asS1) replaceAll(ways, "SAA: sequential", "combine: dedup");
  if (shape_.nEsp == 1) replaceAll(ways, ": flat", ": dedup");
  for (const std::string gather : {"MP-AllGather: ", "MP-AllGather of the gate's sums: "})
    for (const char* algorithm : {"hierarchical", "ring", "recursive_doubling"})
      if (shape_.nMp == 2 || (mpWithinNodes_ && shape_.nMp <= kUnthrottled &&
                              algorithm == std::string_view("hierarchical")))
        replaceAll(ways, gather + algorithm, gather + "linear");
  if (shape_.nEp == 2) replaceAll(ways, "EP-AlltoAll: pairwise", "EP-AlltoAll: linear");
  if (shape_.nEsp == 2 && espWithinNodes_)
    replaceAll(ways, "ESP-AllReduce: hierarchical", "ESP-AllReduce: linear");
  if (shape_.nMp == 2 && mpWithinNodes_)  // PPMoE's
    replaceAll(ways, "; AllReduce: hierarchical", "; AllReduce: linear");
  return ways;
}

void Contender::setData(Data& data) {
  data_ = &data;
  require(moecclMoeLayerSetWeights(handle_.get(), &data.weights()), "set the weights", nullptr);
  if (backward_)
    require(moecclMoeLayerSetGradients(handle_.get(), &data.gradients()), "set the gradients",
            nullptr);
}

void Contender::run(int count) {
  for (int i = 0; i < count; ++i) {
    require(moecclMoeForward(handle_.get(), data_->input(), data_->output(), nullptr),
            setting_.name().c_str(), nullptr);
    if (backward_)
      require(moecclMoeBackward(handle_.get(), data_->outputGradient(), kAuxiliaryLossScale,
                                data_->inputGradient(), nullptr),
              setting_.name().c_str(), nullptr);
  }
}

void Contender::barrier() {
  int ranks = 0;
  require(moecclCommCount(comm_, &ranks), "count the ranks", comm_);
  const signed char mine = 0;
  std::vector<signed char> all(static_cast<std::size_t>(ranks));
  require(moecclAllGather(&mine, all.data(), 1, moecclInt8, comm_, nullptr), "barrier", comm_);
}

}  // namespace moeccl::perf::layers
