// Writes what was measured and predicted of each layer as JSON, with the summaries of all.
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "perf/common/options.h"
#include "perf/perf/layer_report.h"

namespace moeccl::perf::layers {
namespace {

using nlohmann::ordered_json;

// Environment variables that decide about times, too.
constexpr const char* kVariables[] = {"MOECCL_PROFILE", "OPENBLAS_NUM_THREADS", "UCX_TLS",
                                      "UCX_NET_DEVICES"};

constexpr const char* kRuleNames[] = {"model", "parm", "corrected"};  // by SelectionRule
static_assert(std::size(kRuleNames) == kRules);

ordered_json shapeToJson(const Layer& layer) {
  ordered_json json = toJson(layer.grid);
  json.update({{"samples", layer.samples},
               {"length", layer.length},
               {"embedding", layer.embedding},
               {"hidden", layer.hidden},
               {"experts", layer.experts},
               {"topK", layer.topK},
               {"capacityFactor", layer.capacityFactor},
               {"capacity", layer.capacity()}});
  return json;
}

ordered_json candidateToJson(const Timed& timed, const Timed& timedAs) {
  const Quartiles quartiles = quartilesOf(timed.seconds);
  return {{"name", timed.setting.name()},
          {"schedule", scheduleName(timed.setting.schedule)},
          {"algorithms", timed.setting.algorithms},
          {"followed", scheduleName(timed.followed)},
          {"error", timed.error},
          {"passes", timed.passes},
          {"timedAs", timedAs.setting.name()},
          {"seconds", timed.seconds},
          {"repeated", timed.repeated},
          {"disturbed", timed.disturbed},
          {"quartiles", {quartiles.first, quartiles.median, quartiles.third}}};
}

ordered_json predictionsToJson(const Selection& selection) {
  ordered_json rules = ordered_json::object();
  for (std::size_t rule = 0; rule < selection.size(); ++rule) {
    ordered_json& list = rules[kRuleNames[rule]] = ordered_json::array();
    for (const Prediction& prediction : selection[rule]) list.push_back(toJson(prediction));
  }
  return rules;
}

ordered_json verdictsToJson(const Outcome& outcome) {
  ordered_json verdicts = ordered_json::object();
  for (const Rule& rule : rules()) {
    const auto verdict = verdictOf(rule, outcome);
    if (!verdict) continue;
    const auto chosen = *rule.choose(outcome, rule.always);
    verdicts[rule.name] = {{"candidate", outcome.measured.timed[chosen].setting.name()},
                           {"regret", verdict->regret},
                           {"right", verdict->right},
                           {"withinNoise", verdict->withinNoise}};
  }
  return verdicts;
}

ordered_json outcomeToJson(const Outcome& outcome) {
  ordered_json json = shapeToJson(outcome.layer);
  json["candidates"] = ordered_json::array();
  for (const Timed& timed : outcome.measured.timed)
    json["candidates"].push_back(candidateToJson(timed, outcome.measured.timed[timed.timedAs]));
  json["notOffered"] = ordered_json::array();
  for (const Absent& absent : outcome.measured.notOffered)
    json["notOffered"].push_back({{"name", absent.setting.name()}, {"reason", absent.reason}});
  json["best"] = outcome.measured.timed[outcome.best.candidate].setting.name();
  json["noise"] = outcome.best.noise;
  json["predictions"] = predictionsToJson(outcome.selection);
  json["rules"] = verdictsToJson(outcome);
  return json;
}

ordered_json rulesToJson(const Run& run) {
  ordered_json json = ordered_json::object();
  for (const Rule& rule : rules())
    if (const auto summary = summaryOf(rule, run.outcomes))
      json[rule.name] = {{"layers", summary->layers},
                         {"meanRegret", summary->meanRegret},
                         {"worstRegret", summary->worstRegret},
                         {"right", summary->right},
                         {"withinNoise", summary->withinNoise}};
  return json;
}

ordered_json errorsToJson(const Run& run) {
  ordered_json json = ordered_json::object();
  for (const moecclSchedule_t schedule : everySchedule()) {
    const std::vector<double> errors = predictionErrors(schedule, run.outcomes);
    if (!errors.empty())
      json[scheduleName(schedule)] = {{"layers", errors.size()},
                                      {"median", quantileOf(errors, 0.5)},
                                      {"ninthDecile", quantileOf(errors, 0.9)}};
  }
  return json;
}

ordered_json speedupsToJson(const Run& run) {
  ordered_json json = ordered_json::array();
  for (const Speedups& row : speedups(run.outcomes))
    json.push_back({{"nMp", row.nMp},
                    {"nEsp", row.nEsp},
                    {"schedule", scheduleName(row.schedule)},
                    {"layers", row.layers},
                    {"mean", row.mean}});
  return json;
}

}  // namespace

ordered_json membersOf(const Run& run) {
  const Options& options = run.options;
  ordered_json json = {{"note", options.note},
                       {"environment", ordered_json::object()},
                       {"seed", options.seed},
                       {"scale", run.scale},
                       {"pass", passName(options.pass)},
                       {"learn", options.learn},
                       {"repetitions", options.repetitions},
                       {"closeRepetitions", options.closeRepetitions},
                       {"turnMs", options.turnMs},
                       {"layers", ordered_json::array()},
                       {"skipped", ordered_json::array()}};
  for (const char* variable : kVariables)
    if (const char* const value = std::getenv(variable)) json["environment"][variable] = value;
  for (const Outcome& outcome : run.outcomes) json["layers"].push_back(outcomeToJson(outcome));
  for (const Skipped& skipped : run.skipped) {
    json["skipped"].push_back(shapeToJson(skipped.layer));
    json["skipped"].back()["gib"] = skipped.gib;
  }
  json["rules"] = rulesToJson(run);
  json["predictionErrors"] = errorsToJson(run);
  json["speedups"] = speedupsToJson(run);
  return json;
}

}  // namespace moeccl::perf::layers
