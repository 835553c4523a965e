// Predicts the schedules of a layer by the library's model, and by Parm's rule with the lines of
// that model.
#include "perf/perf/layer_selection.h"

#include <algorithm>

#include "perf/perf/layer_parm.h"

namespace moeccl::perf::layers {
namespace {

std::vector<Prediction> byModel(const moecclCluster_t& cluster, const moecclMoeConfig_t& config,
                                moecclPass_t pass) {
  moecclQuery_t query = MOECCL_QUERY_INITIALIZER;
  query.cluster = &cluster;
  query.layer = &config;
  query.pass = pass;
  return Choices(query).predictions();
}

// Seconds by the line of the algorithm that is the fastest for so many bytes. One rank alone
// exchanges nothing.
double lineAt(const moecclCluster_t& cluster, int ranks, const char* collective, double bytes) {
  if (ranks == 1) return 0;
  const auto choices = algorithmChoices(cluster, collective, static_cast<std::size_t>(bytes), 1);
  return choices.empty() ? 0 : choices[0].alpha + choices[0].beta * bytes;
}

ParmLines linesOf(const moecclCluster_t& cluster, const Job& job) {
  moecclCluster_t mp = MOECCL_CLUSTER_INITIALIZER;
  require(moecclGridGetComm(cluster.grid, moecclGroupMp, &mp.comm), "ask for the MP group",
          nullptr);
  int mpRanks = 0;
  require(moecclCommCount(mp.comm, &mpRanks), "count the ranks", mp.comm);
  const auto ofGrid = [&cluster, &job](const char* collective) {
    return
        [&, collective](double bytes) { return lineAt(cluster, job.ranks(), collective, bytes); };
  };
  // MP groups may lie differently on the nodes; the slowest counts.
  return {[mp, mpRanks, &job](double bytes) {
            const double mine = lineAt(mp, mpRanks, "allgather", bytes);
            return std::ranges::max(job.gather(std::vector<double>{mine}));
          },
          ofGrid("dispatch"), ofGrid("combineallgather")};
}

// S1 and S2 as the model has them, with Parm's times.
std::vector<Prediction> byParm(const std::vector<Prediction>& model, const ParmTimes& times) {
  std::vector<Prediction> predictions;
  for (const auto schedule : {moecclScheduleS1, moecclScheduleS2}) {
    const auto known = std::ranges::find(model, schedule, &Prediction::schedule);
    if (known == model.end()) continue;
    predictions.push_back(*known);
    predictions.back().seconds = predictions.back().communication =
        schedule == moecclScheduleS1 ? times.s1 : times.s2;
  }
  std::ranges::stable_sort(predictions, {}, &Prediction::seconds);  // of equal ones S1, as there
  return predictions;
}

}  // namespace

Selection selectionOf(const Layer& layer, moecclPass_t pass, moecclGrid_t grid, const Job& job) {
  moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
  cluster.grid = grid;
  Selection selection;
  selection[kRuleModel] = byModel(cluster, layer.config(moecclScheduleAuto, pass), pass);
  const ParmLines lines = linesOf(cluster, job);
  for (const auto rule : {kRuleParm, kRuleCorrected})
    selection[rule] = byParm(selection[kRuleModel], parmTimes(layer, lines, rule == kRuleParm));
  return selection;
}

}  // namespace moeccl::perf::layers
