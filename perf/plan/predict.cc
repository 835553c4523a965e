// Runs moeccl-plan predict: prints the ranking of placements and schedules, and writes it as JSON.
#include "perf/plan/predict.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <span>

#include "perf/common/collectives.h"
#include "perf/common/json.h"
#include "perf/common/options.h"
#include "perf/common/output_file.h"
#include "perf/plan/placement.h"
#include "perf/plan/ranking.h"

namespace moeccl::perf::plan {
namespace {

using nlohmann::ordered_json;

constexpr int kSchemaVersion = 1;

std::string textOfNodes(const std::vector<int>& ranksPerNode) {
  const bool even =
      std::ranges::adjacent_find(ranksPerNode, std::not_equal_to()) == ranksPerNode.end();
  const int ranks = std::accumulate(ranksPerNode.begin(), ranksPerNode.end(), 0);
  return std::to_string(ranks) + " ranks on " + std::to_string(ranksPerNode.size()) +
         (even ? " nodes of " + std::to_string(ranksPerNode[0]) : " uneven nodes");
}

std::string_view nameOf(moecclLinks_t links) {
  for (const auto& [name, kind] : kLinks)
    if (kind == links) return name;
  return {};
}

// "typical links", "typical links (nvlink, 100 Gb/s)", "profile.json (pcie)".
std::string linksOf(const PredictOptions& options) {
  std::string which(options.links == moecclLinksHost ? "" : nameOf(options.links));
  if (options.networkGbits > 0)
    which += (which.empty() ? "" : ", ") + std::to_string(options.networkGbits) + " Gb/s";
  const std::string from = options.profileFile.empty() ? "typical links" : options.profileFile;
  return which.empty() ? from : from + " (" + which + ")";
}

// ", leaves of 16 nodes, oversubscription 4", or nothing.
std::string switchesOf(const PredictOptions& options) {
  if (options.nodesPerSwitch == 0) return {};
  char text[80];
  std::snprintf(text, sizeof text, ", leaves of %d nodes, oversubscription %g",
                options.nodesPerSwitch, options.oversubscription);
  return text;
}

ordered_json toJson(const Predicted& one, const std::vector<int>& ranksPerNode) {
  ordered_json json = {{"grid", perf::toJson(one.shape)},
                       {"groupsInNodes", groupsInNodes(one.shape, ranksPerNode)},
                       {"tokensPerSecond", one.tokensPerSecond}};
  json.update(perf::toJson(one.choice));
  return json;
}

void printRanking(const PredictOptions& options, const std::vector<Predicted>& all) {
  const auto shown =
      options.top == 0 ? all.size() : std::min(all.size(), static_cast<std::size_t>(options.top));
  std::printf("# %s, pass: %s, %s%s\n", textOfNodes(options.ranksPerNode).c_str(),
              passName(options.pass).c_str(), linksOf(options).c_str(),
              switchesOf(options).c_str());
  std::printf("# %zu of %zu, best first; grids are MPxEPxESP; * is measured, all else is priced\n",
              shown, all.size());
  std::printf("#%11s %11s %11s %11s  %-18s %-10s %-8s   %s\n", "tokens/s", "ms", "exchanges",
              "MB between", "grid", "in a node", "schedule", "algorithms");
  for (const Predicted& one : std::span(all).first(shown)) {
    const Prediction& choice = one.choice;
    std::printf("%12.4g %11.3f %11.3f %11.3f  %-18s %-10s %-8s %c %s\n", one.tokensPerSecond,
                choice.seconds * 1e3, choice.communication * 1e3, choice.bytesBetween * 1e-6,
                textOf(one.shape).c_str(), groupsInNodes(one.shape, options.ranksPerNode).c_str(),
                choice.name.c_str(), choice.measured ? '*' : ' ', choice.exchanges.c_str());
  }
}

// As perf/plan/PREDICT.md describes it.
std::string jsonOf(const PredictOptions& options, const std::vector<Predicted>& all) {
  ordered_json choices = ordered_json::array();
  for (const Predicted& one : all) choices.push_back(toJson(one, options.ranksPerNode));
  const moecclMoeConfig_t& layer = options.layer;
  const ordered_json whole = {
      {"schema", "moeccl-plan-predict"},
      {"schemaVersion", kSchemaVersion},
      {"ranksPerNode", options.ranksPerNode},
      {"nodesPerSwitch", options.nodesPerSwitch},
      {"oversubscription", options.oversubscription},
      {"links", nameOf(options.links)},
      {"networkGbits", options.networkGbits},
      {"profile", options.profileFile.empty() ? ordered_json() : ordered_json(options.profileFile)},
      {"layer",
       {{"tokens", layer.tokens},
        {"embedding", layer.embedding},
        {"hidden", layer.hidden},
        {"experts", layer.experts},
        {"topK", layer.topK},
        {"capacityFactor", layer.capacityFactor},
        {"capacityGroups", layer.capacityGroups}}},
      {"pass", passName(options.pass)},
      {"choices", std::move(choices)}};
  return whole.dump(1) + '\n';
}

void predict(const PredictOptions& options) {
  OutputFile json("--json", options.jsonFile);
  const Predictor predictor(options);
  const std::vector<Predicted> all = predictor.rank(placementsOf(options));
  printRanking(options, all);
  if (options.explain) std::printf("\n%s", predictor.explain(all[0].shape).c_str());
  if (!options.jsonFile.empty()) json.write(jsonOf(options, all));
}

}  // namespace

int predictMain(int argc, char** argv) {
  const Parsed<PredictOptions> parsed = parsePredictOptions(argc, argv);
  if (const std::optional<int> code = answered("moeccl-plan predict", parsed)) return *code;
  return runAlone("moeccl-plan predict", [&] { predict(parsed.options); });
}

}  // namespace moeccl::perf::plan
