// Questions of users: which algorithm, which schedule.
#include <algorithm>
#include <cstdlib>
#include <optional>
#include <span>

#include "algorithms/choice.h"
#include "src/api/arguments.h"
#include "src/api/choices.h"
#include "src/api/layer_sizes.h"
#include "src/api/moe_handle.h"
#include "src/api/profile_handle.h"
#include "src/select/alternatives.h"
#include "src/structs.h"
#include "src/text.h"

namespace moeccl {
namespace {

constexpr StructKind<moecclCluster_t> kCluster = {
    "cluster", "MOECCL_CLUSTER_INITIALIZER", MOECCL_CLUSTER_MAGIC,
    MOECCL_END_OF(moecclCluster_t, profile), MOECCL_END_OF(moecclCluster_t, profile)};
constexpr StructKind<moecclScheduleQuery_t> kQuery = {
    "query", "MOECCL_SCHEDULE_QUERY_INITIALIZER", MOECCL_SCHEDULE_QUERY_MAGIC,
    MOECCL_END_OF(moecclScheduleQuery_t, layer), MOECCL_END_OF(moecclScheduleQuery_t, layer)};

// Ranks on nodes, and what is known of their links.
struct Cluster {
  Topology topology;
  moecclGridShape_t shape;
  FixedAlgorithms fixed;
  std::shared_ptr<const Profile> profile;
  int ranksOnNode;  // of the job on its largest node, of which these may be a part
};

void requireShape(const moecclGridShape_t& shape, int ranks) {
  if (shape.nMp >= 1 && shape.nEp >= 1 && shape.nEsp >= 1 &&
      static_cast<long long>(shape.nEp) * shape.nEsp == ranks && ranks % shape.nMp == 0 &&
      shape.order >= 0 && shape.order < moecclNumOrders)
    return;
  throw Error(
      moecclInvalidArgument,
      stringf("cluster.shape is {nMp %d, nEp %d, nEsp %d, order %d}; nEp * nEsp must be the "
              "number of ranks, %d, and nMp divide it",
              shape.nMp, shape.nEp, shape.nEsp, static_cast<int>(shape.order), ranks));
}

std::shared_ptr<const Profile> profileIn(const moecclCluster_t& cluster) {
  if (cluster.profile == nullptr) return nullptr;
  requireLive(HandleKind::profile, cluster.profile);
  return cluster.profile->profile;
}

Cluster imagined(const moecclCluster_t& cluster) {
  require(cluster.nNodes > 0, "cluster has neither grid nor comm; then nNodes must be above 0");
  require(cluster.ranksPerNode != nullptr, "cluster.ranksPerNode is NULL; pass [nNodes] numbers");
  constexpr long long kMostRanks = 1 << 16;
  long long ranks = 0;
  for (int node = 0; node < cluster.nNodes; ++node) {
    const int here = cluster.ranksPerNode[node];
    if (here < 1 || (ranks += here) > kMostRanks)
      throw Error(moecclInvalidArgument,
                  stringf("cluster.ranksPerNode[%d] is %d; each node has at least one rank, all "
                          "together at most %lld",
                          node, here, kMostRanks));
  }
  const std::span<const int> nodes(cluster.ranksPerNode, static_cast<std::size_t>(cluster.nNodes));
  return {Topology::uneven(nodes), cluster.shape, {}, profileIn(cluster), std::ranges::max(nodes)};
}

// Null: the cluster is imagined.
HeldComm heldOf(const moecclCluster_t& cluster) {
  if (cluster.grid == nullptr) return hold(cluster.comm);
  gridOf(cluster.grid);
  return holdWorld(cluster.grid);
}

Cluster clusterOf(const moecclCluster_t& cluster) {
  const auto state = heldOf(cluster);
  if (state.isNull) return imagined(cluster);
  const Communicator& communicator = communicatorOf(state);
  return {
      communicator.topology(),
      cluster.grid == nullptr ? moecclGridShape_t{1, 1, 1, moecclOrderEspEp} : cluster.grid->shape,
      communicator.settings().algorithms, state->model->profile(), state->model->ranksOnNode()};
}

LayerQuestion questionOf(const moecclScheduleQuery_t& query) {
  require(query.layer != nullptr, "query.layer is NULL; it must be the layer's config");
  if (query.pass < moecclPassForward || query.pass > moecclPassBoth)
    throw Error(moecclInvalidArgument,
                stringf("query.pass is %d; it must be moecclPassForward, Backward or Both",
                        static_cast<int>(query.pass)));
  const moecclMoeConfig_t layer = readStruct(kMoeConfig, query.layer);
  return {layer, query.pass, requestedSchedule(layer, std::getenv("MOECCL_SCHEDULE"))};
}

// What follows from a question on a grid.
struct Subject {
  LayerSizes sizes;
  std::vector<moecclSchedule_t> offered;
  std::vector<Pass> passes;
};

Subject subjectOf(const LayerQuestion& question, const moecclGridShape_t& grid) {
  const LayerShape shape = layerShape(question.layer, moecclScheduleAuto, grid);
  Subject subject{sizesOf(shape), {}, {}};
  subject.sizes.chunks = question.layer.chunks;
  if (question.pass & moecclPassForward) subject.passes.push_back(Pass::forward);
  if (question.pass & moecclPassBackward) subject.passes.push_back(Pass::backward);
  for (const auto schedule :
       {moecclScheduleBaseline, moecclScheduleS1, moecclScheduleS2, moecclSchedulePpMoe}) {
    const bool wanted = question.requested == moecclScheduleAuto || question.requested == schedule;
    if (!wanted || !offers(schedule, shape)) continue;
    layerShape(question.layer, schedule, grid);  // what it cannot have is refused, chosen or not
    subject.offered.push_back(schedule);
  }
  if (subject.offered.empty()) layerShape(question.layer, question.requested, grid);  // says why
  return subject;
}

constexpr moecclGroup_t groupOf(GroupKind kind) {
  switch (kind) {
    case GroupKind::world:
      return moecclGroupWorld;
    case GroupKind::mp:
      return moecclGroupMp;
    case GroupKind::ep:
      return moecclGroupEp;
    case GroupKind::esp:
      return moecclGroupEsp;
  }
  return moecclGroupWorld;
}

ScheduleAnswer::Exchange answerOf(const LayerModel::ExchangeEstimate& estimate) {
  const Exchange& exchange = estimate.exchange;
  moecclScheduleExchange_t it = MOECCL_SCHEDULE_EXCHANGE_INITIALIZER;
  it.pass = estimate.pass == Pass::forward ? moecclPassForward : moecclPassBackward;
  it.group = groupOf(exchange.group);
  it.phase = exchange.name;
  it.bytes = static_cast<std::size_t>(exchange.bytes);
  it.seconds = estimate.seconds;
  it.calls = exchange.times;
  it.measured = estimate.measured;
  it.digest = estimate.digest;
  return {it, std::string(nameOf(exchange.collective)), textOf(estimate.choice)};
}

ScheduleAnswers answer(LayerModel& model, const Subject& subject) {
  ScheduleAnswers answers;
  for (const LayerModel::Estimate& estimate :
       model.estimates(subject.offered, subject.passes, subject.sizes)) {
    ScheduleAnswer& one = answers.emplace_back();
    one.choice = MOECCL_SCHEDULE_CHOICE_INITIALIZER;
    one.choice.schedule = estimate.schedule;
    one.choice.seconds = estimate.seconds;
    one.choice.communication = estimate.communication;
    one.choice.bytesBetween = estimate.bytesBetween;
    one.choice.measured = estimate.measured;
    one.choice.chunks = estimate.chunks;
    one.choice.nExchanges = static_cast<int>(estimate.exchanges.size());
    for (const LayerModel::ExchangeEstimate& exchange : estimate.exchanges)
      one.exchanges.push_back(answerOf(exchange));
  }
  return answers;
}

// The model of a cluster's layers: the grid's own, or one made in `imagined`.
LayerModel& modelOf(moecclGrid_t grid, const Cluster& cluster,
                    std::optional<LayerModel>& imagined) {
  const Grid shape = asGrid(cluster.shape);
  if (grid != nullptr)
    return grid->questions.modelFor(cluster.topology, shape, cluster.fixed, cluster.profile,
                                    cluster.ranksOnNode);
  return imagined.emplace(cluster.topology, shape, cluster.fixed, cluster.profile,
                          cluster.ranksOnNode);
}

// The answer that the grid remembers, or nullptr.
std::shared_ptr<const ScheduleAnswers> remembered(moecclGrid_t grid,
                                                  const LayerQuestion& question) {
  if (grid == nullptr) return nullptr;
  gridOf(grid);
  const auto world = holdWorld(grid);
  communicatorOf(world);
  return grid->questions.isFor(world->model->profile()) ? grid->questions.find(question) : nullptr;
}

}  // namespace
}  // namespace moeccl

using moeccl::boundary;
using moeccl::Error;
using moeccl::require;

moecclResult_t moecclSelectAlgorithm(const moecclCluster_t* cluster, const char* collective,
                                     size_t bytes, int nExpertsPerRank,
                                     moecclAlgorithmChoices_t* choices) {
  return boundary("moecclSelectAlgorithm", nullptr, [&] {
    const moecclCluster_t theirs = moeccl::readStruct(moeccl::kCluster, cluster);
    require(collective != nullptr, "collective is NULL; it must name a collective");
    require(choices != nullptr, "choices is NULL; pass where to store the choices");
    const moeccl::Collective which = moeccl::collectiveOf(collective);
    const moeccl::Cluster ranks = moeccl::clusterOf(theirs);
    moeccl::AlgorithmChoice given = ranks.fixed[static_cast<std::size_t>(which)];
    if (moeccl::needsGrid(which)) {
      require(theirs.comm == nullptr, "cluster.comm has no grid, and the collective needs one");
      moeccl::requireShape(ranks.shape, ranks.topology.ranks());
      if (nExpertsPerRank < 1)
        throw Error(
            moecclInvalidArgument,
            moeccl::stringf("nExpertsPerRank is %d; it must be at least 1", nExpertsPerRank));
      given.parameters.grid = moeccl::asGrid(ranks.shape);
      given.parameters.experts = nExpertsPerRank;
    }
    // A communicator's own model remembers the candidates and their prices.
    const auto state = moeccl::heldOf(theirs);
    std::optional<moeccl::CostModel> imagined;
    if (state.isNull) imagined.emplace(ranks.topology, ranks.profile, ranks.ranksOnNode);
    moeccl::CostModel& model = state.isNull ? *imagined : *state->model;
    auto found = std::make_unique<moecclAlgorithmChoices>();
    for (const auto& estimate : model.estimates(which, given, static_cast<double>(bytes))) {
      if (!state.isNull && !moeccl::communicatorOf(state).serves(estimate.choice)) continue;
      moecclAlgorithmChoice_t choice = MOECCL_ALGORITHM_CHOICE_INITIALIZER;
      choice.measured = estimate.measured;
      choice.seconds = estimate.seconds;
      const moeccl::Segment line = model.line(which, given, estimate.choice);
      choice.alpha = line.alpha;
      choice.beta = line.beta;
      choice.digest = model.digest(which, given, estimate.choice);
      found->all.push_back({choice, textOf(estimate.choice)});
    }
    *choices = found.release();
  });
}

moecclResult_t moecclSelectSchedule(const moecclScheduleQuery_t* query,
                                    moecclScheduleChoices_t* choices) {
  return boundary("moecclSelectSchedule", nullptr, [&] {
    require(choices != nullptr, "choices is NULL; pass where to store the choices");
    const moecclScheduleQuery_t theirs = moeccl::readStruct(moeccl::kQuery, query);
    const moecclCluster_t where = moeccl::readStruct(moeccl::kCluster, theirs.cluster);
    require(where.comm == nullptr || where.grid != nullptr,
            "cluster.comm has no grid, and a schedule needs one; set cluster.grid");
    const moeccl::LayerQuestion question = moeccl::questionOf(theirs);
    std::shared_ptr<const moeccl::ScheduleAnswers> answers =
        moeccl::remembered(where.grid, question);
    if (answers == nullptr) {
      const moeccl::Cluster cluster = moeccl::clusterOf(where);
      moeccl::requireShape(cluster.shape, cluster.topology.ranks());
      const moeccl::Subject subject = moeccl::subjectOf(question, cluster.shape);
      std::optional<moeccl::LayerModel> imagined;
      answers = std::make_shared<const moeccl::ScheduleAnswers>(
          moeccl::answer(moeccl::modelOf(where.grid, cluster, imagined), subject));
      if (where.grid != nullptr) where.grid->questions.remember(question, answers);
    }
    *choices = new moecclScheduleChoices{std::move(answers)};
  });
}

moecclResult_t moecclExplainSchedule(const moecclScheduleQuery_t* query, char* text,
                                     size_t* bytes) {
  return boundary("moecclExplainSchedule", nullptr, [&] {
    require(bytes != nullptr, "bytes is NULL; pass how much room text has");
    require(text != nullptr || *bytes == 0, "text is NULL while bytes is above 0");
    const moecclScheduleQuery_t theirs = moeccl::readStruct(moeccl::kQuery, query);
    const moecclCluster_t where = moeccl::readStruct(moeccl::kCluster, theirs.cluster);
    require(where.comm == nullptr || where.grid != nullptr,
            "cluster.comm has no grid, and a schedule needs one; set cluster.grid");
    const moeccl::LayerQuestion question = moeccl::questionOf(theirs);
    const moeccl::Cluster cluster = moeccl::clusterOf(where);
    moeccl::requireShape(cluster.shape, cluster.topology.ranks());
    const moeccl::Subject subject = moeccl::subjectOf(question, cluster.shape);
    std::optional<moeccl::LayerModel> imagined;
    moeccl::LayerModel& model = moeccl::modelOf(where.grid, cluster, imagined);
    const std::string all = model.explain(subject.offered, subject.passes, subject.sizes);
    if (*bytes > 0) text[all.copy(text, *bytes - 1)] = '\0';
    *bytes = all.size() + 1;
  });
}
