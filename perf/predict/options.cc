#include "perf/predict/options.h"

#include <CLI/CLI.hpp>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <string_view>

#include "perf/common/number_checks.h"
#include "perf/common/parse.h"

namespace moeccl::perf {
namespace {

const char* const kDescription =
    "Predicts which schedule, which grid and which placement of its groups on the nodes carries a\n"
    "Mixture-of-Experts layer the fastest on a cluster, which need not exist: it runs in one "
    "process "
    "and\nsends nothing. What the profile has measured is taken from there; all else is priced "
    "from "
    "plans, on the\nlinks that the profile's samples come out best on. perf/predict/README.md "
    "describes "
    "the "
    "table and the JSON.";

constexpr int kMostRanks = 1 << 16;

struct Key {
  std::string_view name;
  std::int64_t moecclMoeConfig_t::*count;
};
constexpr std::array kCounts = {
    Key{"tokens", &moecclMoeConfig_t::tokens}, Key{"embedding", &moecclMoeConfig_t::embedding},
    Key{"hidden", &moecclMoeConfig_t::hidden}, Key{"experts", &moecclMoeConfig_t::experts},
    Key{"top-k", &moecclMoeConfig_t::topK}};
constexpr std::string_view kFactor = "capacity-factor", kGroups = "capacity-groups";

[[noreturn]] void wrongLayer(const std::string& what) {
  throw CLI::ValidationError(
      "--layer", what +
                     "; give tokens, embedding, hidden, experts, top-k and capacity-factor, and "
                     "capacity-groups where they are not the MP group's ranks");
}

// All of `text`, and no more.
template <typename Number>
Number readNumber(const std::string& name, const std::string& text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    wrongLayer(name + "=" + text + " is no number" +
               (std::is_integral_v<Number> ? " of them" : ""));
  return value;
}

moecclMoeConfig_t readLayer(const std::vector<std::string>& settings) {
  moecclMoeConfig_t layer = MOECCL_MOE_CONFIG_INITIALIZER;
  std::map<std::string, std::string> given;
  for (const std::string& setting : settings) {
    const std::size_t equals = setting.find('=');
    if (equals == std::string::npos) wrongLayer("\"" + setting + "\" is not NAME=VALUE");
    if (!given.emplace(setting.substr(0, equals), setting.substr(equals + 1)).second)
      wrongLayer(setting.substr(0, equals) + " is given twice");
  }
  const auto take = [&](std::string_view name, bool needed) {
    const auto found = given.extract(std::string(name));
    if (found.empty() && needed) wrongLayer("there is no " + std::string(name));
    return found.empty() ? std::string() : found.mapped();
  };
  for (const auto& [name, count] : kCounts) {
    const std::string text = take(name, true);
    layer.*count = readNumber<std::int64_t>(std::string(name), text);
    const std::int64_t least = name == "tokens" ? 0 : 1;
    if (layer.*count < least)
      wrongLayer(std::string(name) + "=" + text + " is below " + std::to_string(least));
  }
  const std::string factor = take(kFactor, true);
  layer.capacityFactor = readNumber<double>(std::string(kFactor), factor);
  if (!(layer.capacityFactor > 0) || !std::isfinite(layer.capacityFactor))
    wrongLayer("capacity-factor=" + factor + " is no number above 0");
  if (const std::string groups = take(kGroups, false); !groups.empty())
    layer.capacityGroups = readNumber<std::int64_t>(std::string(kGroups), groups);
  if (!given.empty()) wrongLayer("there is no \"" + given.begin()->first + "\"");
  return layer;
}

moecclPass_t passNamed(const std::string& name) {
  if (name == "forward") return moecclPassForward;
  if (name == "backward") return moecclPassBackward;
  if (name == "both") return moecclPassBoth;
  throw CLI::ValidationError("--pass",
                             "\"" + name + "\" is none; there are forward, backward and both");
}

moecclLinks_t linksNamed(const std::string& name) {
  for (const auto& [known, links] : kLinks)
    if (name == known) return links;
  throw CLI::ValidationError("--links",
                             "\"" + name + "\" is none; there are host, nvlink and pcie");
}

std::vector<int> unevenNodes(const std::string& text) {
  std::vector<int> nodes;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    int ranks = 0;
    const auto [stop, error] = std::from_chars(at, end, ranks);
    if (error != std::errc() || ranks < 1 || ranks > kMostRanks || (stop != end && *stop != ','))
      throw CLI::ValidationError("--uneven", "\"" + text +
                                                 "\" are no nodes; give the ranks of each, as in "
                                                 "8,8,4");
    nodes.push_back(ranks);
    if (stop == end) return nodes;
    at = stop + 1;
  }
}

void chooseNodes(const CLI::App& app, int nodes, int ranks, PredictOptions& options) {
  if (options.ranksPerNode.empty()) {
    if (app.count("--nodes") == 0 || app.count("--ranks-per-node") == 0)
      throw CLI::ValidationError(
          "--nodes", "give --nodes and --ranks-per-node, or --uneven with the ranks of each node");
    if (std::int64_t{nodes} * ranks <= kMostRanks)
      options.ranksPerNode.assign(static_cast<std::size_t>(nodes), ranks);
  }
  const auto total =
      std::accumulate(options.ranksPerNode.begin(), options.ranksPerNode.end(), std::int64_t{0});
  if (total == 0 || total > kMostRanks)
    throw CLI::ValidationError(app.count("--uneven") > 0 ? "--uneven" : "--nodes",
                               "more than " + std::to_string(kMostRanks) + " ranks");
  if (options.nMp > 0 && total % options.nMp != 0)
    throw CLI::ValidationError("--mp", std::to_string(options.nMp) + " does not divide the " +
                                           std::to_string(total) + " ranks");
}

}  // namespace

Parsed<PredictOptions> parsePredictOptions(int argc, const char* const* argv) {
  Parsed<PredictOptions> parsed;
  PredictOptions& options = parsed.options;
  int nodes = 0, ranks = 0;
  std::vector<std::string> layer;
  std::string pass = "forward", links = "host", uneven;
  CLI::App app(kDescription, "moeccl-predict");
  const CLI::Range some(1, kMostRanks);
  auto* nodesOption = app.add_option("--nodes", nodes, "how many there are")->check(some);
  auto* ranksOption =
      app.add_option("--ranks-per-node", ranks, "of every node")->check(some)->needs(nodesOption);
  auto* unevenOption = app.add_option("--uneven", uneven, "8,8,4: the ranks of each node instead")
                           ->excludes(nodesOption)
                           ->excludes(ranksOption);
  app.add_option(
         "--layer", layer,
         "tokens=4096,embedding=1024,hidden=4096,experts=64,top-k=2,capacity-factor=1.2: as "
         "in\nmoecclMoeConfig_t; tokens are those of one MP group")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->required();
  app.add_option("--mp", options.nMp, "ranks of an MP group (default: all that divide the ranks)")
      ->check(some);
  auto* profileOption =
      app.add_option(
             "--profile", options.profileFile,
             "from moeccl-fit on a cluster of such nodes and links (default: typical links)")
          ->check(CLI::ExistingFile);
  app.add_option(
         "--links", links,
         "what is typical where there is no profile or it says nothing, local work too: host, "
         "nvlink or\npcie, of GPUs")
      ->capture_default_str();
  app.add_option("--network-gbits", options.networkGbits,
                 "what a node's ranks together can send to other nodes, in Gb/s (default: as is "
                 "typical of\nthe links)")
      ->check(CLI::Range(1, 1'000'000))
      ->excludes(profileOption);
  auto* switchOption =
      app.add_option("--nodes-per-switch", options.nodesPerSwitch,
                     "nodes that hang on each leaf switch; a core joins the leaves (default: one "
                     "switch has\nall nodes)")
          ->check(some);
  app.add_option("--oversubscription", options.oversubscription,
                 "what the nodes of a full leaf can send together, against what its uplink to the "
                 "core carries")
      ->check(numberCheck("NUMBER", "from 1 to 1e6",
                          [](double value) { return value >= 1 && value <= 1e6; }))
      ->needs(switchOption)
      ->capture_default_str();
  app.add_option("--pass", pass, "forward, backward or both")->capture_default_str();
  app.add_option("--top", options.top, "print so many of the best; 0: all")
      ->check(kNotNegative)
      ->capture_default_str();
  app.add_flag("--explain", options.explain, "also print every term of the best one's grid");
  app.add_option("--json", options.jsonFile, "also write all of them to this file");
  parse(app, argc, argv, parsed, [&] {
    options.layer = readLayer(layer);
    options.pass = passNamed(pass);
    options.links = linksNamed(links);
    if (*unevenOption) options.ranksPerNode = unevenNodes(uneven);
    chooseNodes(app, nodes, ranks, options);
  });
  return parsed;
}

}  // namespace moeccl::perf
