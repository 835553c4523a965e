#include "perf/fit/schedules.h"

#include <algorithm>
#include <array>
#include <deque>

#include "perf/common/choices.h"
#include "perf/fit/measured_layer.h"

namespace moeccl::perf {
namespace {

// Sizes as capacity factors make them, not powers of two: see sweep.cc.
constexpr std::array kKinds = {
    WholeKind{64, {128, 64, 1, 1, 1}},      //
    WholeKind{160, {128, 128, 1, 1, 1.8}},  // empty places
    WholeKind{320, {256, 256, 1, 1, 1}},    //
    WholeKind{512, {64, 256, 2, 2, 1.2}},   // products
    WholeKind{192, {256, 64, 1, 2, 1.5}},   // what is exchanged
    WholeKind{1024, {128, 64, 1, 1, 1.2}},  // tokens
    WholeKind{448, {256, 256, 1, 2, 1}},    //
    WholeKind{1024, {256, 128, 1, 1, 1.7}},
};

std::vector<moecclSchedule_t> offeredBy(moecclGrid_t grid, const moecclMoeConfig_t& config) {
  moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
  cluster.grid = grid;
  moecclScheduleQuery_t query = MOECCL_SCHEDULE_QUERY_INITIALIZER;
  query.cluster = &cluster;
  query.layer = &config;
  const ScheduleChoices choices(query);
  std::vector<moecclSchedule_t> offered;
  for (int i = 0; i < choices.count(); ++i) offered.push_back(choices.choice(i).schedule);
  std::ranges::sort(offered);
  return offered;
}

// Small layers one after another, as training has them: alone, they would begin with what the
// barrier leaves.
constexpr double kBlockSeconds = 20e-3;

}  // namespace

std::span<const WholeKind> wholeKinds() { return kKinds; }

std::string textOf(const WholeKind& kind) {
  return std::to_string(kind.tokens) + " tokens, " + textOf(kind.layer);
}

SchedulesMeasured measureSchedules(Team& team, const FitOptions& options, moecclGrid_t grid,
                                   const moecclGridShape_t& shape, const WholeKind& kind,
                                   double until, ProfileBuilder* profile) {
  moecclMoeConfig_t config = MOECCL_MOE_CONFIG_INITIALIZER;
  config.tokens = kind.tokens;
  config.embedding = kind.layer.embedding;
  config.hidden = kind.layer.hidden * shape.nEsp;
  config.experts = kind.layer.experts * shape.nEp;
  config.topK = std::min(kind.layer.topK, config.experts);
  config.capacityFactor = kind.layer.capacityFactor;
  config.training = 1;

  SchedulesMeasured measured;
  const double now = team.elapsed();
  if (now >= until) {
    measured.cut = true;
    return measured;
  }
  std::deque<MeasuredLayer> layers;
  std::vector<Turn> turns;
  const auto add = [&] {
    MeasuredLayer& layer = layers.emplace_back(grid, config, team.job().memory());
    for (const TimedPass& pass : kTimedPasses)
      turns.push_back({[&layer, &pass] { (layer.*pass.run)(); }});
  };
  for (const moecclSchedule_t schedule : offeredBy(grid, config)) {
    config.schedule = schedule;
    add();
  }
  takeTurns(team, turns,
            {options.steadyPercent, options.maxRepetitions, until, Calls::inARow, kBlockSeconds},
            true);
  for (std::size_t i = 0; i < turns.size(); ++i) {
    if (profile != nullptr)
      profile->add(layers[i / kTimedPasses.size()].get(),
                   kTimedPasses[i % kTimedPasses.size()].pass, medianOf(turns[i].seconds));
    measured.unsteady += !turns[i].steady;
  }
  return measured;
}

}  // namespace moeccl::perf
