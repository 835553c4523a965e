#include "perf/layers/selection.h"

#include "perf/common/contender.h"

namespace moeccl::perf::layers {

Selection selectionOf(const Layer& layer, moecclPass_t pass, moecclGrid_t grid) {
  const moecclMoeConfig_t config = layer.config(moecclScheduleAuto, pass);
  moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
  cluster.grid = grid;
  moecclScheduleQuery_t query = MOECCL_SCHEDULE_QUERY_INITIALIZER;
  query.cluster = &cluster;
  query.layer = &config;
  query.pass = pass;

  Selection selection;
  for (int rule = 0; rule < moecclNumRules; ++rule) {
    query.rule = static_cast<moecclSelectionRule_t>(rule);
    std::array<moecclScheduleChoice_t, moecclNumSchedules> choices;
    int count = moecclNumSchedules;
    require(moecclSelectSchedule(&query, choices.data(), &count), "select a schedule", nullptr);
    for (int i = 0; i < count; ++i) {
      const moecclScheduleChoice_t& choice = choices[static_cast<std::size_t>(i)];
      selection[static_cast<std::size_t>(rule)].push_back({choice.schedule, choice.seconds,
                                                           choice.communication,
                                                           choice.measured != 0, choice.exchanges});
    }
  }
  return selection;
}

}  // namespace moeccl::perf::layers
