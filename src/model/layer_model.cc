// Prices a layer under one schedule. An exchange takes as long as in the slowest of its groups,
// local work follows the profile or typical processors, and what goes on at once follows the
// critical path.
#include "src/model/layer_model.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "algorithms/choice.h"
#include "algorithms/schedules/kinds.h"
#include "src/model/alternatives.h"

namespace moeccl {
namespace {

// Local work where nobody has measured it, in the order of the features, in float32 and in 16 bits.
struct TypicalLocal {
  std::array<double, kLocalFeatures> wide, narrow;
};
// A core of some years ago, which works alone, and computes in float32 what is smaller.
constexpr TypicalLocal kCore = {{5e-6, 1e-9, 0.1e-9, 1e-9, 5e-9, 1e-9},
                                {5e-6, 1e-9, 0.1e-9, 1e-9, 5e-9, 1e-9}};
// GPUs as NVLink joins: products of 40 and 400 TFLOP/s, memory of 2 TB/s, and some fifty launches.
constexpr TypicalLocal kLargeGpu = {{200e-6, 0.1e-12, 0.1e-12, 4e-12, 8e-12, 4e-12},
                                    {200e-6, 0.1e-12, 0.01e-12, 2e-12, 4e-12, 2e-12}};
// GPUs of PCIe machines: 25 and 100 TFLOP/s, 0.8 TB/s.
constexpr TypicalLocal kSmallGpu = {{200e-6, 0.2e-12, 0.16e-12, 10e-12, 20e-12, 10e-12},
                                    {200e-6, 0.2e-12, 0.04e-12, 5e-12, 10e-12, 5e-12}};

const TypicalLocal& typicalLocal(moecclLinks_t kind) {
  return kind == moecclLinksNvlink ? kLargeGpu : kind == moecclLinksPcie ? kSmallGpu : kCore;
}

// The group of a kind that each rank belongs to.
int groupOf(const Grid& grid, GroupKind kind, int rank) {
  switch (kind) {
    case GroupKind::world:
      return 0;
    case GroupKind::mp:
      return grid.mpGroupOf(rank);
    case GroupKind::ep:
      return grid.shardOf(rank);
    case GroupKind::esp:
      return grid.positionOf(rank);
  }
  return 0;
}

using Place = std::pair<Topology, Leaves>;

std::vector<Place> differentGroups(const Cluster& cluster, const Grid& grid, GroupKind kind) {
  const Topology& world = cluster.topology;
  std::vector<std::vector<int>> groups, nodes;
  for (int rank = 0; rank < world.ranks(); ++rank) {
    const auto group = static_cast<std::size_t>(groupOf(grid, kind, rank));
    groups.resize(std::max(groups.size(), group + 1));
    nodes.resize(groups.size());
    groups[group].push_back(rank);
    nodes[group].push_back(world.nodeOf(rank));
  }
  const std::vector<Leaves> leaves = leavesOf(cluster.switches, world, groups);
  std::vector<Place> different;
  for (std::size_t i = 0; i < groups.size(); ++i)
    if (Place place{Topology(nodes[i]), leaves[i]}; !std::ranges::count(different, place))
      different.push_back(std::move(place));
  return different;
}

}  // namespace

LayerModel::LayerModel(const Cluster& it)
    : fixed_(it.fixed),
      profile_(it.profile),
      grid_(asGrid(it.shape)),
      kind_(it.typical.kind),
      background_(it.background || it.typical.onGpus()) {
  for (int kind = 0; kind < kGroupKinds; ++kind)
    for (auto& [topology, leaves] : differentGroups(it, grid_, static_cast<GroupKind>(kind)))
      groups_[static_cast<std::size_t>(kind)].emplace_back(
          std::move(topology), profile_, it.ranksOnNode, it.typical, std::move(leaves));
  if (profile_ == nullptr || profile_->fingerprint.ranksPerNode.empty() || it.typical.onGpus())
    return;
  const Fingerprint& cluster = profile_->fingerprint;
  const int measured = std::ranges::max(cluster.ranksPerNode);
  slowdownAlone_ = sharingOf(it.ranksOnNode, it.ranksOnNode, cluster.processorsPerNode).slowdown;
  slowdown_ = slowdownAlone_ / sharingOf(measured, measured, cluster.processorsPerNode).slowdown;
}

void LayerModel::prepare() {
  for (int number = 1; number < scheduleNumbers(); ++number)
    for (const bool dropless : {false, true})
      for (const Pass pass : {Pass::forward, Pass::backward}) {
        const auto schedule = static_cast<moecclSchedule_t>(number);
        if (!offers(schedule, schedules::Options{.dropless = dropless})) continue;
        const auto& value = schedules::known(entryOf(schedule), pass, {.dropless = dropless});
        for (const schedules::Phase& phase : value.phases) {
          if (phase.kind != schedules::Kind::exchange) continue;
          const Collective collective = carrier(value, phase);
          for (CostModel& group : groups(phase.group))
            if (group.topology().ranks() > 1) group.prepare(collective, given(collective));
        }
      }
}

AlgorithmChoice LayerModel::given(Collective collective) const {
  AlgorithmChoice choice = fixed_[static_cast<std::size_t>(collective)];
  if (needsGrid(collective)) {
    choice.parameters.grid = grid_;
    // Costs go by bytes; into how many experts' blocks they are cut is no matter, and profiles know
    // one.
    choice.parameters.experts = 1;
  }
  // Calls without a fixed algorithm take the first one: no rank knows all sizes.
  if (collective == Collective::allToAllv && choice.algorithm == nullptr)
    choice.algorithm = &firstAlgorithm(collective);
  return choice;
}

double LayerModel::localSeconds(Pass pass, const LocalFeatures& work,
                                const LayerShape& shape) const {
  // Memory and vector registers hold half as many float64 as float32.
  const double width = shape.datatype == moecclFloat64 ? 2 : 1;
  if (const Local* local = profile_ == nullptr ? nullptr : profile_->local(pass))
    return width * slowdown_ * local->fit.at(work);
  const TypicalLocal& typical = typicalLocal(kind_);
  const auto& costs = shape.elementBytes < 4 ? typical.narrow : typical.wide;
  double seconds = 0;
  for (std::size_t i = 0; i < kLocalFeatures; ++i)
    seconds += width * slowdownAlone_ * costs[i] * work[i];
  // Each product has two gradients.
  return pass == Pass::forward ? seconds : 2 * seconds;
}

std::vector<RouteEstimate> LayerModel::routesOf(const LayerShape& shape, const Exchange& exchange) {
  CostModel& world = groups(GroupKind::world)[0];
  const double rowBytes = static_cast<double>(shape.embedding * shape.elementBytes);
  std::vector<RouteEstimate> all =
      routeEstimates({world.links(), world.sharing()}, world.topology(), grid_,
                     {static_cast<int>(shape.experts), static_cast<int>(shape.choices),
                      std::llround(exchange.bytes / rowBytes), static_cast<std::size_t>(rowBytes)});
  const auto straight = std::ranges::find(all, true, &RouteEstimate::isAllToAllv);
  if (straight == all.end() || straight->dispatch <= 0) return all;
  const double seconds =
      world
          .fastest(Collective::allToAllv, given(Collective::allToAllv),
                   exchange.bytes * static_cast<double>(shape.choices) * grid_.esp)
          .seconds;
  const double factor = seconds / straight->dispatch;
  if (!std::isfinite(factor)) return all;
  for (RouteEstimate& it : all)
    for (double RouteEstimate::*field :
         {&RouteEstimate::dispatch, &RouteEstimate::combine, &RouteEstimate::dispatchLatency,
          &RouteEstimate::combineLatency})
      it.*field *= factor;
  return all;
}

// Where rows leave nodes these decide.
LayerModel::ExchangeEstimate LayerModel::estimateRouted(const LayerShape& shape, Pass pass,
                                                        const Exchange& exchange) {
  const RouteEstimate fastest = routesOf(shape, exchange)[0];
  const bool dispatches = exchange.routed == Routed::dispatch;
  ExchangeEstimate estimate{pass, exchange};
  estimate.seconds = dispatches ? fastest.dispatch : fastest.combine;
  estimate.latency = dispatches ? fastest.dispatchLatency : fastest.combineLatency;
  estimate.bytesBetween = (dispatches ? fastest.dispatchedBetween : fastest.combinedBetween) *
                          static_cast<double>(shape.embedding * shape.elementBytes);
  estimate.measured = false;
  estimate.digest = std::hash<std::string_view>()(fastest.algorithm);
  estimate.route = fastest.algorithm;
  return estimate;
}

LayerModel::ExchangeEstimate LayerModel::estimate(const LayerShape& shape, Pass pass,
                                                  const Exchange& exchange) {
  if (exchange.routed != Routed::no) return estimateRouted(shape, pass, exchange);
  const AlgorithmChoice how = given(exchange.collective);
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15u;  // so that the order of groups counts
  ExchangeEstimate slowest{pass, exchange};
  for (CostModel& group : groups(exchange.group)) {
    const auto one = group.fastest(exchange.collective, how, exchange.bytes);
    slowest.bytesBetween =
        std::max(slowest.bytesBetween,
                 group.bytesBetween(exchange.collective, how, one.choice, exchange.bytes));
    slowest.measured &= one.measured;
    slowest.digest = slowest.digest * kOdd + group.digest(exchange.collective, how, one.choice);
    if (slowest.group != nullptr && one.seconds <= slowest.seconds) continue;
    slowest.group = &group;
    slowest.choice = one.choice;
    slowest.seconds = one.seconds;
    slowest.latency = one.latency;
  }
  return slowest;
}

LayerModel::PassPrice LayerModel::priceOf(const LayerShape& shape, Pass pass,
                                          const ScheduleTerms& terms,
                                          std::span<const ExchangeEstimate> exchanges) const {
  std::vector<PhasePrice> prices;
  double local = 0, exchanging = 0;
  for (const ScheduleTerms::Phase& phase : terms.phases) {
    PhasePrice& price = prices.emplace_back();
    price.local = localSeconds(pass, phase.local, shape);
    local += price.local;
    if (phase.exchange < 0) continue;
    const ExchangeEstimate& it = exchanges[static_cast<std::size_t>(phase.exchange)];
    price.exchange = phase.calls * it.seconds;
    exchanging += price.exchange;
    price.link = it.betweenNodes() ? Link::between : Link::inNode;
  }
  const schedules::Schedule& value = valueOf(shape, pass);
  const double communication =
      value.streams > 1 ? criticalPath(value, prices, background_) - local : exchanging;
  LocalFeatures layer{};
  layer[kLayer] = 1;
  return {local + localSeconds(pass, layer, shape) + communication, communication};
}

LayerModel::Estimate LayerModel::estimate(const LayerShape& shape, std::span<const Pass> passes) {
  const bool learns = std::ranges::find(passes, Pass::backward) != passes.end();
  const bool automatic = !(learns && shape.grid.nMp > 1 && seesCopies(shape.schedule));
  Estimate estimate{shape, 0, 0, 0, profile_ != nullptr, automatic, {}};
  for (const Pass pass : passes) {
    const ScheduleTerms terms = termsOf(shape, pass);
    const std::size_t first = estimate.exchanges.size();
    for (const Exchange& exchange : terms.exchanges) {
      const ExchangeEstimate it = this->estimate(shape, pass, exchange);
      estimate.measured &= it.measured;
      estimate.bytesBetween += exchange.times * it.bytesBetween;
      estimate.exchanges.push_back(it);
    }
    estimate.measured &=
        profile_ != nullptr && profile_->local(pass) != nullptr && shape.datatype == moecclFloat32;
    const PassPrice price =
        priceOf(shape, pass, terms, std::span(estimate.exchanges).subspan(first));
    estimate.communication += price.communication;
    estimate.seconds += price.seconds;
  }
  if (!(estimate.seconds < kForEver)) estimate.seconds = estimate.communication = kForEver;
  return estimate;
}

// Kinds of links share an exchange's time as they share the price of its plan.
Costs LayerModel::costsOf(const ExchangeEstimate& it, int calls) {
  CostModel::Shares inside;
  if (it.group != nullptr)
    inside = it.group->inNode(it.exchange.collective, given(it.exchange.collective), it.choice,
                              it.exchange.bytes);
  else if (!it.betweenNodes())
    inside.bytes = 1;
  const double latency = calls * it.latency, beyond = calls * (it.seconds - it.latency);
  Costs costs;
  costs[Cost::latencyInNode] = inside.latency * latency;
  costs[Cost::latencyBetween] = (1 - inside.latency) * latency;
  costs[Cost::bytesInNode] = inside.bytes * beyond;
  costs[Cost::bytesBetween] = (1 - inside.bytes) * beyond;
  return costs;
}

Alternative LayerModel::costsOf(const Estimate& estimate, std::span<const Pass> passes) {
  using schedules::Weights;
  const LayerShape& shape = estimate.shape;
  Alternative all{
      nameInChunks(shape.schedule, shape.chunks, shape.routed), {}, 0, estimate.measured};
  double inTurn = 0;
  std::size_t first = 0;  // of the pass's exchanges
  for (const Pass pass : passes) {
    const ScheduleTerms terms = termsOf(shape, pass);
    const schedules::Schedule& value = valueOf(shape, pass);
    const bool forward = pass == Pass::forward;
    LocalFeatures layer{};
    layer[kLayer] = 1;
    all.besidePhases += localSeconds(pass, layer, shape);
    for (std::size_t i = 0; i < value.phases.size(); ++i) {
      const schedules::Phase& phase = value.phases[i];
      const ScheduleTerms::Phase& term = terms.phases[i];
      Alternative::Phase& it = all.phases[static_cast<std::size_t>(pass)].emplace_back();
      it.name = phase.name;
      it.beside = phase.stream != 0;
      if (term.exchange >= 0) {
        it.predicted = costsOf(estimate.exchanges[first + static_cast<std::size_t>(term.exchange)],
                               term.calls);
        inTurn += it.predicted.seconds();
        if (!phase.routed) continue;
      }
      const Weights weights = schedules::signatureOf(phase.kind).weights;
      const Cost kind = weights == Weights::gate ? forward ? Cost::gateForward : Cost::gateBackward
                        : weights != Weights::none
                            ? forward ? Cost::expertsForward : Cost::expertsBackward
                        : forward ? Cost::movesForward
                                  : Cost::movesBackward;
      it.predicted[kind] = localSeconds(pass, term.local, shape);
    }
    first += terms.exchanges.size();
  }
  // Time that hides behind something else is no single exchange's: all of them shrink alike.
  for (std::vector<Alternative::Phase>& pass : all.phases)
    for (Alternative::Phase& phase : pass)
      for (const Cost kind :
           {Cost::latencyInNode, Cost::latencyBetween, Cost::bytesInNode, Cost::bytesBetween})
        if (inTurn > 0) phase.predicted[kind] *= estimate.communication / inTurn;
  return all;
}

}  // namespace moeccl
