#include "src/moe/layer_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "algorithms/choice.h"
#include "algorithms/schedules/registry.h"
#include "src/select/alternatives.h"
#include "src/text.h"

namespace moeccl {
namespace {

// Where nobody has measured: a core of some years ago, which works alone. In the order of the
// features.
constexpr std::array<double, kLocalFeatures> kTypicalLocal = {5e-6, 1e-9, 0.1e-9, 1e-9, 5e-9, 1e-9};

constexpr double kForEver = std::numeric_limits<double>::infinity();

// Of the elements, float32, of the layers whose local work is measured.
constexpr int kMeasuredBytes = 4;

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

const char* nameOf(moecclSchedule_t schedule) {
  static_assert(moecclScheduleBaseline == 1,
                "schedules are registered in the order of their numbers");
  const auto place = static_cast<std::size_t>(schedule);
  return place == 0 ? "auto" : schedules::registry()[place - 1].name.data();
}

LayerModel::LayerModel(const Cluster& it)
    : fixed_(it.fixed), profile_(it.profile), where_(textOf(asGrid(it.shape), it.topology)) {
  for (int kind = 0; kind < kGroupKinds; ++kind)
    for (Topology& topology :
         differentGroups(it.topology, asGrid(it.shape), static_cast<GroupKind>(kind)))
      groups_[static_cast<std::size_t>(kind)].emplace_back(std::move(topology), profile_,
                                                           it.ranksOnNode);
  if (profile_ == nullptr) return;
  for (std::size_t schedule = 0; schedule < layers_.size(); ++schedule)
    for (std::size_t i = 0; i < kChunks.size(); ++i)
      for (const Pass pass : {Pass::forward, Pass::backward})
        layers_[schedule][i][static_cast<std::size_t>(pass)] =
            profile_->layers(keyOf(static_cast<moecclSchedule_t>(schedule), kChunks[i], pass));
  if (profile_->fingerprint.ranksPerNode.empty()) return;
  const Fingerprint& cluster = profile_->fingerprint;
  const int measured = std::ranges::max(cluster.ranksPerNode);
  slowdownAlone_ = sharingOf(it.ranksOnNode, it.ranksOnNode, cluster.processorsPerNode).slowdown;
  slowdown_ = slowdownAlone_ / sharingOf(measured, measured, cluster.processorsPerNode).slowdown;
}

void LayerModel::prepare(const Grid& grid) {
  constexpr std::array<moecclSchedule_t, 4> kAll = {moecclScheduleBaseline, moecclScheduleS1,
                                                    moecclScheduleS2, moecclSchedulePpMoe};
  constexpr std::array<Pass, 2> kBoth = {Pass::forward, Pass::backward};
  LayerSizes sizes{};
  sizes.grid = grid;
  sizes.elementBytes = kMeasuredBytes;
  sizes.embedding = 1;
  sizes.experts = grid.ep;
  for (const bool dropless : {false, true})
    for (const moecclSchedule_t schedule : kAll)
      for (const Pass pass : kBoth) {
        sizes.dropless = dropless;
        for (const Exchange& exchange : termsOf(schedule, pass, sizes).exchanges)
          for (CostModel& group : groups(exchange.group))
            group.prepare(exchange.collective, given(exchange, sizes));
      }
}

AlgorithmChoice LayerModel::given(const Exchange& exchange, const LayerSizes& sizes) const {
  AlgorithmChoice choice = fixed_[static_cast<std::size_t>(exchange.collective)];
  if (needsGrid(exchange.collective)) {
    choice.parameters.grid = sizes.grid;
    // Costs go by bytes; into how many experts' blocks they are cut is no matter, and profiles know
    // one.
    choice.parameters.experts = 1;
  }
  // As calls are made: none knows all sizes.
  if (exchange.collective == Collective::allToAllv && choice.algorithm == nullptr)
    choice.algorithm = &firstAlgorithm(exchange.collective);
  return choice;
}

LayerKey LayerModel::keyOf(moecclSchedule_t schedule, std::int64_t chunks, Pass pass) const {
  return {chunks > 1 ? stringf("%s:chunks=%lld", nameOf(schedule), static_cast<long long>(chunks))
                     : nameOf(schedule),
          nameOf(pass), where_};
}

LayerSample LayerModel::sampleOf(moecclSchedule_t schedule, Pass pass, const LayerSizes& sizes) {
  const ScheduleTerms terms = termsOf(schedule, pass, sizes);
  LayerSample sample{{terms.local.begin(), terms.local.end()}, {}};
  for (const Exchange& exchange : terms.exchanges) {
    LayerExchange stored{std::string(nameOf(exchange.collective)), {}, exchange.bytes};
    for (const CostModel& group : groups(exchange.group))
      stored.where.push_back(group.where(exchange.collective, given(exchange, sizes)));
    sample.exchanges.insert(sample.exchanges.end(), static_cast<std::size_t>(exchange.times),
                            stored);
  }
  return sample;
}

double LayerModel::localSeconds(Pass pass, const ScheduleTerms& terms,
                                const LayerSizes& sizes) const {
  // Memory and vector registers hold so many fewer elements of another size.
  const double width = static_cast<double>(sizes.elementBytes) / kMeasuredBytes;
  if (const Local* local = profile_ == nullptr ? nullptr : profile_->local(pass))
    return width * slowdown_ * local->fit.at(terms.local);
  double seconds = 0;
  for (std::size_t i = 0; i < kLocalFeatures; ++i)
    seconds += width * slowdownAlone_ * kTypicalLocal[i] * terms.local[i];
  // Each product has two gradients.
  return pass == Pass::forward ? seconds : 2 * seconds;
}

const LayerFactors* LayerModel::measured(moecclSchedule_t schedule, std::int64_t chunks,
                                         Pass pass) const {
  const auto known = std::ranges::find(kChunks, chunks);
  if (known == kChunks.end()) return nullptr;
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

std::vector<std::int64_t> LayerModel::chunksOf(moecclSchedule_t schedule,
                                               std::span<const Pass> passes,
                                               const LayerSizes& sizes) const {
  if (schedule != moecclScheduleS1) return {1};
  if (sizes.chunks > 0) return {sizes.chunks};
  std::vector<std::int64_t> all;
  for (const std::int64_t chunks : kChunks) {
    const bool known = std::ranges::all_of(
        passes, [&](Pass pass) { return measured(schedule, chunks, pass) != nullptr; });
    const bool divides = sizes.partGroups > 0 && sizes.partGroups % chunks == 0;
    if (chunks == 1 || (known && divides)) all.push_back(chunks);
  }
  return all;
}

LayerModel::ExchangeEstimate LayerModel::estimate(Pass pass, const Exchange& exchange,
                                                  const LayerSizes& sizes, double* latency,
                                                  double* bytesBetween) {
  const AlgorithmChoice how = given(exchange, sizes);
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

// sizes.chunks: set.
LayerModel::Estimate LayerModel::estimate(moecclSchedule_t schedule, std::span<const Pass> passes,
                                          const LayerSizes& sizes) {
  Estimate estimate{schedule, 0, 0, 0, profile_ != nullptr, {}, sizes.chunks};
  for (const Pass pass : passes) {
    const ScheduleTerms terms = termsOf(schedule, pass, sizes);
    const LayerFactors factors = factorsOf(schedule, sizes.chunks, pass);
    ExchangesInLayer all(factors);
    for (const Exchange& exchange : terms.exchanges) {
      double latency = 0, bytesBetween = 0;
      estimate.exchanges.push_back(this->estimate(pass, exchange, sizes, &latency, &bytesBetween));
      const ExchangeEstimate& slowest = estimate.exchanges.back();
      estimate.measured &= slowest.measured;
      estimate.bytesBetween += exchange.times * bytesBetween;
      all.add(exchange.times, latency, slowest.seconds - latency);
    }
    estimate.measured &= profile_ != nullptr && profile_->local(pass) != nullptr &&
                         sizes.elementBytes == kMeasuredBytes;
    estimate.communication += all.seconds();
    estimate.seconds += factors.local * localSeconds(pass, terms, sizes);
  }
  estimate.seconds += estimate.communication;
  // Not even that, where factors leave nothing of an exchange.
  if (std::isnan(estimate.seconds)) estimate.seconds = estimate.communication = kForEver;
  return estimate;
}

std::vector<LayerModel::Estimate> LayerModel::estimates(std::span<const moecclSchedule_t> offered,
                                                        std::span<const Pass> passes,
                                                        const LayerSizes& sizes) {
  std::vector<Estimate> all;
  for (const moecclSchedule_t schedule : offered) {
    std::optional<Estimate> best;
    for (const std::int64_t chunks : chunksOf(schedule, passes, sizes)) {
      LayerSizes cut = sizes;
      cut.chunks = chunks;
      Estimate one = estimate(schedule, passes, cut);
      if (!best || one.seconds < best->seconds) best = std::move(one);
    }
    all.push_back(std::move(*best));
  }
  std::ranges::stable_sort(all, {}, &Estimate::seconds);
  // What cannot run is no choice, unless nothing else is: then calls say why.
  if (!all.empty() && all[0].seconds < kForEver)
    std::erase_if(all, [](const Estimate& it) { return it.seconds == kForEver; });
  return all;
}

std::string LayerModel::explain(std::span<const moecclSchedule_t> offered,
                                std::span<const Pass> passes, const LayerSizes& sizes) {
  std::string text;
  for (const Estimate& estimate : estimates(offered, passes, sizes)) {
    LayerSizes cut = sizes;
    cut.chunks = estimate.chunks;
    text += stringf("%-9s %10.3f ms, of these %.3f ms in exchanges%s\n", nameOf(estimate.schedule),
                    estimate.seconds * 1e3, estimate.communication * 1e3,
                    estimate.measured ? "" : " (not all of it measured)");
    if (estimate.chunks > 1)
      text += stringf("    in %lld chunks\n", static_cast<long long>(estimate.chunks));
    for (const Pass pass : passes) {
      const ScheduleTerms terms = termsOf(estimate.schedule, pass, cut);
      const LayerFactors factors = factorsOf(estimate.schedule, estimate.chunks, pass);
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
      text += stringf("      %-32s %10s  %10.3f ms\n", "local work", "",
                      localSeconds(pass, terms, sizes) * 1e3);
      for (const Exchange& exchange : terms.exchanges)
        for (CostModel& group : groups(exchange.group)) {
          const auto candidates =
              group.estimates(exchange.collective, given(exchange, sizes), exchange.bytes);
          text += stringf("      %-32s %10.0f B", exchange.name, exchange.bytes);
          if (exchange.times > 1) text += stringf(", %d times,", exchange.times);
          for (const CostModel::Estimate& candidate : candidates)
            text += stringf("%s %.3f ms %s", &candidate == candidates.data() ? "" : ",",
                            candidate.seconds * 1e3, textOf(candidate.choice).c_str());
          text += !candidates.empty() && candidates[0].measured ? "\n" : " (priced)\n";
        }
    }
  }
  return text;
}

}  // namespace moeccl
