#include "src/moe/layer_model.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include "algorithms/choice.h"
#include "src/select/alternatives.h"
#include "src/text.h"

namespace moeccl {
namespace {

// Where nobody has measured, in the order of the features, in float32 and in 16 bits.
struct TypicalLocal {
  std::array<double, kLocalFeatures> wide, narrow;
};
// A core of some years ago, which works alone, and computes in float32 what is smaller.
constexpr TypicalLocal kCore = {{5e-6, 1e-9, 0.1e-9, 1e-9, 5e-9, 1e-9},
                                {5e-6, 1e-9, 0.1e-9, 1e-9, 5e-9, 1e-9}};
// GPUs as NVLink joins: products of 40 and 400 TFLOP/s, memory of 2 TB/s, and some fifty launches.
constexpr TypicalLocal kLargeGpu = {{200e-6, 0.1e-12, 0.1e-12, 4e-12, 8e-12, 4e-12},
                                    {200e-6, 0.1e-12, 0.01e-12, 2e-12, 4e-12, 2e-12}};
// Those of PCIe machines: 25 and 100 TFLOP/s, 0.8 TB/s.
constexpr TypicalLocal kSmallGpu = {{200e-6, 0.2e-12, 0.16e-12, 10e-12, 20e-12, 10e-12},
                                    {200e-6, 0.2e-12, 0.04e-12, 5e-12, 10e-12, 5e-12}};

const TypicalLocal& typicalLocal(moecclLinks_t kind) {
  return kind == moecclLinksNvlink ? kLargeGpu : kind == moecclLinksPcie ? kSmallGpu : kCore;
}

constexpr double kForEver = std::numeric_limits<double>::infinity();

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

std::vector<Topology> differentGroups(const Topology& world, const Grid& grid, GroupKind kind) {
  if (kind == GroupKind::world) return {world};
  std::vector<std::vector<int>> nodes;
  for (int rank = 0; rank < world.ranks(); ++rank) {
    const auto group = static_cast<std::size_t>(groupOf(grid, kind, rank));
    if (nodes.size() <= group) nodes.resize(group + 1);
    nodes[group].push_back(world.nodeOf(rank));
  }
  std::vector<Topology> different;
  for (const std::vector<int>& group : nodes)
    if (Topology topology(group); !std::ranges::count(different, topology))
      different.push_back(std::move(topology));
  return different;
}

}  // namespace

LayerModel::LayerModel(const Cluster& it)
    : fixed_(it.fixed),
      profile_(it.profile),
      grid_(asGrid(it.shape)),
      where_(textOf(grid_, it.topology)),
      kind_(it.typical.kind) {
  for (int kind = 0; kind < kGroupKinds; ++kind)
    for (Topology& topology : differentGroups(it.topology, grid_, static_cast<GroupKind>(kind)))
      groups_[static_cast<std::size_t>(kind)].emplace_back(std::move(topology), profile_,
                                                           it.ranksOnNode, it.typical);
  if (profile_ == nullptr) return;
  layers_.resize(static_cast<std::size_t>(scheduleNumbers()));
  for (std::size_t schedule = 0; schedule < layers_.size(); ++schedule)
    for (std::size_t i = 0; i < kChunks.size(); ++i)
      for (const Pass pass : {Pass::forward, Pass::backward})
        layers_[schedule][i][static_cast<std::size_t>(pass)] =
            profile_->layers(keyOf(static_cast<moecclSchedule_t>(schedule), kChunks[i], pass));
  if (profile_->fingerprint.ranksPerNode.empty() || it.typical.onGpus()) return;
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
  // As calls are made: none knows all sizes.
  if (collective == Collective::allToAllv && choice.algorithm == nullptr)
    choice.algorithm = &firstAlgorithm(collective);
  return choice;
}

LayerKey LayerModel::keyOf(moecclSchedule_t schedule, std::int64_t chunks, Pass pass) const {
  return {nameInChunks(schedule, chunks), nameOf(pass), where_};
}

LayerSample LayerModel::sampleOf(const LayerShape& shape, Pass pass) {
  const ScheduleTerms terms = termsOf(shape, pass);
  LayerSample sample{{terms.local.begin(), terms.local.end()}, {}};
  for (const Exchange& exchange : terms.exchanges) {
    LayerExchange stored{std::string(nameOf(exchange.collective)), {}, exchange.bytes};
    for (const CostModel& group : groups(exchange.group))
      stored.where.push_back(group.where(exchange.collective, given(exchange.collective)));
    sample.exchanges.insert(sample.exchanges.end(), static_cast<std::size_t>(exchange.times),
                            stored);
  }
  return sample;
}

double LayerModel::localSeconds(Pass pass, const LocalFeatures& work,
                                const LayerShape& shape) const {
  // Memory and vector registers hold half as many.
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

const LayerFactors* LayerModel::measured(moecclSchedule_t schedule, std::int64_t chunks,
                                         Pass pass) const {
  const auto known = std::ranges::find(kChunks, chunks);
  if (known == kChunks.end()) return nullptr;
  if (layers_.empty()) return nullptr;
  const LayerCurve* const layers =
      layers_[static_cast<std::size_t>(schedule)][static_cast<std::size_t>(known - kChunks.begin())]
             [static_cast<std::size_t>(pass)];
  return layers == nullptr ? nullptr : &layers->factors;
}

LayerFactors LayerModel::factorsOf(moecclSchedule_t schedule, std::int64_t chunks,
                                   Pass pass) const {
  for (const std::int64_t as : {chunks, std::int64_t{1}})
    if (const LayerFactors* const factors = measured(schedule, as, pass)) return *factors;
  return {};
}

std::vector<LayerShape> LayerModel::cut(const LayerShape& shape,
                                        std::span<const Pass> passes) const {
  std::vector<LayerShape> all{shape};
  if (shape.dropless || !cutsChunks(shape.schedule)) return all;
  const std::int64_t groupsOfPart = shape.groups / shape.grid.nMp;
  for (const std::int64_t chunks : kChunks)
    if (chunks > 1 && groupsOfPart % chunks == 0 && std::ranges::all_of(passes, [&](Pass pass) {
          return measured(shape.schedule, chunks, pass) != nullptr;
        }))
      all.emplace_back(shape).chunks = chunks;
  return all;
}

bool LayerModel::canSave(const LayerShape& shape) const {
  return kind_ == moecclLinksHost &&
         groups_[static_cast<std::size_t>(GroupKind::world)][0].topology().nodes() > 1 &&
         shape.choices > 1 && routes(shape.schedule, shape);
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

LayerModel::ExchangeEstimate LayerModel::estimateRouted(const LayerShape& shape, Pass pass,
                                                        const Exchange& exchange, double* latency,
                                                        double* bytesBetween) {
  const RouteEstimate fastest = routesOf(shape, exchange)[0];
  const bool dispatches = exchange.routed == Routed::dispatch;
  *latency = dispatches ? fastest.dispatchLatency : fastest.combineLatency;
  *bytesBetween = (dispatches ? fastest.dispatchedBetween : fastest.combinedBetween) *
                  static_cast<double>(shape.embedding * shape.elementBytes);
  return {pass,
          exchange,
          {},
          dispatches ? fastest.dispatch : fastest.combine,
          false,
          std::hash<std::string_view>()(fastest.algorithm),
          fastest.algorithm};
}

LayerModel::ExchangeEstimate LayerModel::estimate(const LayerShape& shape, Pass pass,
                                                  const Exchange& exchange, double* latency,
                                                  double* bytesBetween) {
  if (exchange.routed != Routed::no)
    return estimateRouted(shape, pass, exchange, latency, bytesBetween);
  const AlgorithmChoice how = given(exchange.collective);
  constexpr std::uint64_t kOdd = 0x9e3779b97f4a7c15u;  // so that the order of groups counts
  ExchangeEstimate slowest{pass, exchange, {}, 0, true, 0};
  *bytesBetween = 0;
  for (CostModel& group : groups(exchange.group)) {
    const auto one = group.fastest(exchange.collective, how, exchange.bytes);
    *bytesBetween = std::max(
        *bytesBetween, group.bytesBetween(exchange.collective, how, one.choice, exchange.bytes));
    slowest.measured &= one.measured;
    slowest.digest = slowest.digest * kOdd + group.digest(exchange.collective, how, one.choice);
    if (slowest.choice.algorithm != nullptr && one.seconds <= slowest.seconds) continue;
    slowest.choice = one.choice;
    slowest.seconds = one.seconds;
    *latency = one.latency;
  }
  return slowest;
}

LayerModel::Estimate LayerModel::estimate(const LayerShape& shape, std::span<const Pass> passes) {
  const bool learns = std::ranges::find(passes, Pass::backward) != passes.end();
  const bool automatic = !(learns && shape.grid.nMp > 1 && seesCopies(shape.schedule));
  Estimate estimate{shape, 0, 0, 0, profile_ != nullptr, automatic, {}};
  for (const Pass pass : passes) {
    const ScheduleTerms terms = termsOf(shape, pass);
    const LayerFactors factors = factorsOf(shape.schedule, shape.chunks, pass);
    ExchangesInLayer all(factors);
    for (const Exchange& exchange : terms.exchanges) {
      double latency = 0, bytesBetween = 0;
      estimate.exchanges.push_back(this->estimate(shape, pass, exchange, &latency, &bytesBetween));
      const ExchangeEstimate& slowest = estimate.exchanges.back();
      estimate.measured &= slowest.measured;
      estimate.bytesBetween += exchange.times * bytesBetween;
      all.add(exchange.times, latency, slowest.seconds - latency);
    }
    estimate.measured &=
        profile_ != nullptr && profile_->local(pass) != nullptr && shape.datatype == moecclFloat32;
    estimate.communication += all.seconds();
    estimate.seconds += factors.local * localSeconds(pass, terms.local, shape);
  }
  estimate.seconds += estimate.communication;
  // Not even that, where factors leave nothing of an exchange.
  if (std::isnan(estimate.seconds)) estimate.seconds = estimate.communication = kForEver;
  return estimate;
}

LayerModel::Estimate LayerModel::fastestOf(const LayerShape& shape, std::span<const Pass> passes,
                                           Free free) {
  std::optional<Estimate> best;
  for (const LayerShape& it : free.chunks ? cut(shape, passes) : std::vector{shape}) {
    Estimate one = estimate(it, passes);
    if (!best || one.seconds < best->seconds) best = std::move(one);
  }
  if (!free.routing || !canSave(shape)) return std::move(*best);
  LayerShape routed = shape;
  routed.routed = true;
  Estimate other = estimate(routed, passes);
  if (other.seconds < best->seconds) std::swap(other, *best);
  best->otherwise = other.seconds;
  return std::move(*best);
}

std::vector<LayerModel::Estimate> LayerModel::estimates(std::span<const LayerShape> offered,
                                                        std::span<const Pass> passes, Free free) {
  std::vector<Estimate> all;
  for (const LayerShape& shape : offered) all.push_back(fastestOf(shape, passes, free));
  std::ranges::stable_sort(all, {}, &Estimate::seconds);
  // What cannot run is no choice, unless nothing else is: then calls say why.
  if (!all.empty() && all[0].seconds < kForEver)
    std::erase_if(all, [](const Estimate& it) { return it.seconds == kForEver; });
  std::stable_partition(all.begin(), all.end(), [](const Estimate& it) { return it.automatic; });
  return all;
}

// Kinds of links share an exchange's time as they share the price of its plan.
Costs LayerModel::costsOf(const LayerShape& shape, const Exchange& exchange, double latencies,
                          double bytes) {
  if (exchange.routed != Routed::no) {
    // Where rows leave nodes these decide.
    double latency = 0, bytesBetween = 0;
    const double all =
        estimateRouted(shape, Pass::forward, exchange, &latency, &bytesBetween).seconds;
    Costs costs;
    costs[Cost::latencyBetween] = latencies * latency;
    costs[bytesBetween > 0 ? Cost::bytesBetween : Cost::bytesInNode] = bytes * (all - latency);
    return costs;
  }
  const AlgorithmChoice how = given(exchange.collective);
  CostModel* slowest = nullptr;
  CostModel::Estimate most{};
  for (CostModel& group : groups(exchange.group)) {
    const auto one = group.fastest(exchange.collective, how, exchange.bytes);
    if (slowest != nullptr && one.seconds <= most.seconds) continue;
    slowest = &group;
    most = one;
  }
  const CostModel::Shares inside =
      slowest->inNode(exchange.collective, how, most.choice, exchange.bytes);
  const double latency = latencies * most.latency, beyond = bytes * (most.seconds - most.latency);
  Costs costs;
  costs[Cost::latencyInNode] = inside.latency * latency;
  costs[Cost::latencyBetween] = (1 - inside.latency) * latency;
  costs[Cost::bytesInNode] = inside.bytes * beyond;
  costs[Cost::bytesBetween] = (1 - inside.bytes) * beyond;
  return costs;
}

Alternative LayerModel::costsOf(const LayerShape& shape, std::span<const Pass> passes) {
  using schedules::Kind;
  // Calls of chunks are phases of their own; those of one routing are one phase.
  const auto callsOf = [](const schedules::Phase& phase, const Exchange& exchange) {
    return phase.kind == Kind::route ? exchange.times : 1;
  };
  const Estimate estimate = this->estimate(shape, passes);
  Alternative all{
      nameInChunks(shape.schedule, shape.chunks, shape.routed), {}, 0, estimate.measured};
  double exchanges = 0;
  for (const Pass pass : passes) {
    const ScheduleTerms terms = termsOf(shape, pass);
    const LayerFactors factors = factorsOf(shape.schedule, shape.chunks, pass);
    const schedules::Schedule& value = valueOf(shape, pass);
    const bool forward = pass == Pass::forward;
    LocalFeatures layer{};
    layer[kLayer] = 1;
    all.besidePhases += factors.local * localSeconds(pass, layer, shape);
    for (std::size_t i = 0; i < value.phases.size(); ++i) {
      const schedules::Phase& phase = value.phases[i];
      const ScheduleTerms::Phase& term = terms.phases[i];
      Alternative::Phase& it = all.phases[static_cast<std::size_t>(pass)].emplace_back();
      it.name = phase.name;
      it.beside = phase.stream != 0;
      if (term.exchange >= 0) {
        const Exchange& exchange = terms.exchanges[static_cast<std::size_t>(term.exchange)];
        it.predicted = costsOf(shape, exchange, factors.latency * callsOf(phase, exchange),
                               factors.bytes * callsOf(phase, exchange));
        exchanges += it.predicted.seconds();
        if (!phase.routed) continue;
      }
      const Cost kind = phase.kind == Kind::gate ? forward ? Cost::gateForward : Cost::gateBackward
                        : phase.kind == Kind::experts || phase.kind == Kind::residual
                            ? forward ? Cost::expertsForward : Cost::expertsBackward
                        : forward ? Cost::movesForward
                                  : Cost::movesBackward;
      it.predicted[kind] = factors.local * localSeconds(pass, term.local, shape);
    }
  }
  // What hides behind the longest exchange is in none alone.
  for (std::vector<Alternative::Phase>& pass : all.phases)
    for (Alternative::Phase& phase : pass)
      for (const Cost kind :
           {Cost::latencyInNode, Cost::latencyBetween, Cost::bytesInNode, Cost::bytesBetween})
        if (exchanges > 0) phase.predicted[kind] *= estimate.communication / exchanges;
  return all;
}

std::vector<LayerModel::Candidate> LayerModel::candidates(std::span<const LayerShape> offered,
                                                          std::span<const Pass> passes, Free free) {
  std::vector<Candidate> all;
  for (const LayerShape& shape : offered)
    for (const std::int64_t chunks : kChunks) {
      LayerShape it = shape;
      if (free.chunks) it.chunks = chunks;
      const bool cuts = !shape.dropless && cutsChunks(shape.schedule) &&
                        shape.groups / shape.grid.nMp % it.chunks == 0;
      if (chunks > 1 && (!free.chunks || !cuts)) continue;
      const Estimate estimate = fastestOf(it, passes, {false, free.routing});
      if (estimate.automatic && estimate.seconds < kForEver)
        all.push_back({estimate.shape, costsOf(estimate.shape, passes)});
    }
  return all;
}

std::string LayerModel::explainPhases(const LayerShape& shape, Pass pass,
                                      const ScheduleTerms& terms) {
  const auto line = [](double seconds, const std::string& what) {
    return stringf("      %10.3f ms  %s\n", seconds * 1e3, what.c_str());
  };
  std::string text = line(localSeconds(pass, terms.local, shape), "local work");
  for (std::size_t i = 0; i < terms.phases.size(); ++i) {
    const ScheduleTerms::Phase& phase = terms.phases[i];
    const std::string what = describe(valueOf(shape, pass), static_cast<int>(i));
    if (phase.exchange < 0) {
      text += line(localSeconds(pass, phase.local, shape), what);
      continue;
    }
    const Exchange& exchange = terms.exchanges[static_cast<std::size_t>(phase.exchange)];
    double longest = 0;
    std::string algorithms;
    if (exchange.routed != Routed::no) {
      const bool dispatches = exchange.routed == Routed::dispatch;
      algorithms = stringf("                     %.0f B:", exchange.bytes);
      const std::vector<RouteEstimate> all = routesOf(shape, exchange);
      longest = dispatches ? all[0].dispatch : all[0].combine;
      for (const RouteEstimate& one : all)
        algorithms += stringf("%s %.3f ms %s", &one == all.data() ? "" : ",",
                              (dispatches ? one.dispatch : one.combine) * 1e3,
                              std::string(one.algorithm).c_str());
      text += line(longest, what) + algorithms + " (priced)\n";
      continue;
    }
    for (CostModel& group : groups(exchange.group)) {
      const auto all =
          group.estimates(exchange.collective, given(exchange.collective), exchange.bytes);
      if (!all.empty()) longest = std::max(longest, all[0].seconds);
      algorithms += stringf("                     %.0f B:", exchange.bytes);
      for (const CostModel::Estimate& one : all)
        algorithms += stringf("%s %.3f ms %s", &one == all.data() ? "" : ",", one.seconds * 1e3,
                              textOf(one.choice).c_str());
      algorithms += !all.empty() && all[0].measured ? "\n" : " (priced)\n";
    }
    text += line(longest, what) + algorithms;
  }
  return text;
}

std::string LayerModel::explain(std::span<const LayerShape> offered, std::span<const Pass> passes,
                                Free free) {
  std::string text;
  for (const Estimate& estimate : estimates(offered, passes, free)) {
    const LayerShape& shape = estimate.shape;
    text += stringf("%-9s %10.3f ms, of these %.3f ms in exchanges%s\n", nameOf(shape.schedule),
                    estimate.seconds * 1e3, estimate.communication * 1e3,
                    estimate.measured ? "" : " (not all of it measured)");
    if (!estimate.automatic)
      text +=
          "    only if asked for: ranks of an MP group compute the same tokens apart, and what "
          "they "
          "learn may differ in its last bits\n";
    if (shape.chunks > 1)
      text += stringf("    in %lld chunks\n", static_cast<long long>(shape.chunks));
    const char* const other = shape.routed ? "a row for each choice" : "token routing";
    if (shape.routed || estimate.otherwise > 0)
      text += shape.routed ? "    rows go by token routing" : "    a row goes for each choice";
    if (estimate.otherwise > 0)
      text += stringf("; by %s it would take %.3f ms", other, estimate.otherwise * 1e3);
    if (shape.routed || estimate.otherwise > 0) text += "\n";
    for (const Pass pass : passes) {
      const ScheduleTerms terms = termsOf(shape, pass);
      const LayerFactors factors = factorsOf(shape.schedule, shape.chunks, pass);
      text += stringf("    %s", nameOf(pass));
      if (factors != LayerFactors{})
        text += stringf(
            "; in whole layers local work takes %.2f times as long, latencies of exchanges "
            "%.2f times%s, their bytes %.2f times",
            factors.local, factors.latency,
            factors.latency < kLeastOwnLatency && terms.exchanges.size() > 1
                ? " (but no less than the longest with half of its own)"
                : "",
            factors.bytes);
      text += "\n";
      text += explainPhases(shape, pass, terms);
    }
  }
  return text;
}

}  // namespace moeccl
