// Reads the arguments of moeccl-plan and of moeccl-plan predict.
#include "perf/plan/options.h"

#include <numeric>

#include "perf/common/options.h"

namespace moeccl::perf::plan {
namespace {

const char* const kDescription =
    "Prints, draws and verifies the plan of a collective: what each rank sends, receives, copies "
    "and\n"
    "reduces, in which order. It runs in one process and sends nothing.\n"
    "  moeccl-plan alltoall --algorithm hierarchical --nodes 4,4,3 --rank 2 --dot plan.dot "
    "--verify\n"
    "moeccl-plan predict ranks schedules, grids and placements on a cluster; it has options of its "
    "own:\n"
    "  moeccl-plan predict --help";

const char* const kPredictDescription =
    "Predicts which schedule, which grid and which placement of its groups on the nodes carries a\n"
    "Mixture-of-Experts layer the fastest on a cluster, which need not exist: it runs in one "
    "process\n"
    "and sends nothing. What the profile has measured is taken from there; all else is priced from "
    "plans,\n"
    "on the links that the profile's samples come out best on.\n"
    "  moeccl-plan predict --nodes 64x8 --mp 8 --layer \\\n"
    "    tokens=4096,embedding=1024,hidden=4096,experts=64,top-k=2,capacity-factor=1.2\n"
    "perf/plan/PREDICT.md describes the table and the JSON.";

constexpr int kMostPredictedRanks = 1 << 16;

// Options for one schedule of layers instead of a collective.
CLI::Option* addScheduleOptions(CLI::App& app, Options& options) {
  auto* schedule = app.add_option("--schedule", options.schedule,
                                  "S1, S2, ...: print both passes of this schedule of layers "
                                  "instead, and draw the forward one");
  auto* dropless = app.add_flag("--dropless", options.dropless, "the schedule without capacity")
                       ->needs(schedule);
  app.add_flag("--token-routing", options.tokenRouting, "the same, its rows by token routing")
      ->needs(dropless);
  app.add_flag("--residual", options.residual, "the schedule with a residual branch")
      ->needs(schedule);
  app.add_option("--chunks", options.chunks, "into which the schedule cuts tokens")
      ->check(CLI::Range(1, 64))
      ->needs(schedule);
  return schedule;
}

void addLinksOption(CLI::App& app, moecclLinks_t& links) {
  std::vector<std::string> names;
  for (const NamedLinks& known : kLinks) names.emplace_back(known.name);
  app.add_option_function<std::string>(
         "--links",
         [&links](const std::string& name) {
           for (const NamedLinks& known : kLinks)
             if (name == known.name) links = known.links;
         },
         "what is typical where there is no profile or it says nothing, local work too: host, "
         "nvlink or\npcie, of GPUs")
      ->check(CLI::IsMember(names))
      ->default_str("host");
}

void addSwitchOptions(CLI::App& app, PredictOptions& options) {
  auto* leaf = app.add_option("--nodes-per-switch", options.nodesPerSwitch,
                              "nodes that hang on each leaf switch; a core joins the leaves "
                              "(default: one switch has\nall nodes)")
                   ->check(CLI::Range(1, kMostPredictedRanks));
  app.add_option("--oversubscription", options.oversubscription,
                 "what the nodes of a full leaf can send together, against what its uplink to the "
                 "core carries")
      ->check(numberCheck("NUMBER", "from 1 to 1e6",
                          [](double value) { return value >= 1 && value <= 1e6; }))
      ->needs(leaf)
      ->capture_default_str();
}

}  // namespace

Parsed<Options> parseOptions(int argc, const char* const* argv) {
  Parsed<Options> parsed;
  Options& options = parsed.options;
  CLI::App app(kDescription, "moeccl-plan");
  const CLI::Range numbers(0, kMostRanks - 1);
  auto* list = app.add_flag("--list", options.list, "print every collective and its algorithms");
  app.add_option("collective", options.collective, "as in MOECCL_ALGO: alltoall, dispatch, ...");
  app.add_option(
      "--algorithm", options.algorithm,
      "as in MOECCL_ALGO: hierarchical, bruck:radix=4, ... (default: the first of --list)");
  auto* nodes = addNodesOption(app, options.ranksPerNode, kMostRanks);
  auto* nodeOfRank = app.add_option("--node-of-rank", options.nodeOfRank,
                                    "0,1,0,1: the node of each rank, instead of --nodes")
                         ->delimiter(',')
                         ->check(numbers)
                         ->excludes(nodes);
  addGridOption(app, options.grid, "of collectives of a grid");
  app.add_option("--experts", options.experts, "of each rank, of collectives that have experts")
      ->check(CLI::Range(1, kMostRanks))
      ->capture_default_str();
  app.add_option("--rank", options.rank, "print and draw this rank alone (default: all)")
      ->check(numbers);
  app.add_flag("--quiet", options.quiet, "print the plans' sizes, not their ops");
  app.add_flag("--verify", options.verify,
               "prove that the plans of all ranks together do what the collective promises");
  app.add_option("--dot", options.dotFile, "draw it, for Graphviz");
  app.add_option("--svg", options.svgFile, "draw it as a picture, by Graphviz's dot");
  auto* schedule = addScheduleOptions(app, options);
  parse(app, argc, argv, parsed, [&] {
    if (!*list && !*schedule && options.collective.empty())
      throw CLI::ValidationError("collective", "name one; --list prints them");
    if (!*list && !*schedule && !*nodes && !*nodeOfRank)
      throw CLI::ValidationError("--nodes",
                                 "give nodes and their ranks, as in --nodes 2x4 or --nodes 4,4,3");
  });
  return parsed;
}

Parsed<PredictOptions> parsePredictOptions(int argc, const char* const* argv) {
  Parsed<PredictOptions> parsed;
  PredictOptions& options = parsed.options;
  CLI::App app(kPredictDescription, "moeccl-plan predict");
  addNodesOption(app, options.ranksPerNode, kMostPredictedRanks)->required();
  addLayerOption(app, options.layer)->required();
  app.add_option("--mp", options.nMp, "ranks of an MP group (default: all that divide the ranks)")
      ->check(CLI::Range(1, kMostPredictedRanks));
  auto* profile =
      app.add_option(
             "--profile", options.profileFile,
             "from moeccl-fit on a cluster of such nodes and links (default: typical links)")
          ->check(CLI::ExistingFile);
  addLinksOption(app, options.links);
  app.add_option("--network-gbits", options.networkGbits,
                 "what a node's ranks together can send to other nodes, in Gb/s (default: as is "
                 "typical of\nthe links)")
      ->check(CLI::Range(1, 1'000'000))
      ->excludes(profile);
  addSwitchOptions(app, options);
  addPassOption(app, options.pass, {"forward", "backward", "both"});
  app.add_option("--top", options.top, "print so many of the best; 0: all")
      ->check(kNotNegative)
      ->capture_default_str();
  app.add_flag("--explain", options.explain, "also print every term of the best one's grid");
  addJsonOption(app, options.jsonFile);
  parse(app, argc, argv, parsed, [&] {
    const int ranks = std::accumulate(options.ranksPerNode.begin(), options.ranksPerNode.end(), 0);
    if (options.nMp > 0 && ranks % options.nMp != 0)
      throw CLI::ValidationError("--mp", std::to_string(options.nMp) + " does not divide the " +
                                             std::to_string(ranks) + " ranks");
  });
  return parsed;
}

}  // namespace moeccl::perf::plan
