#include "perf/plan/options.h"

#include "perf/common/parse.h"

namespace moeccl::perf::plan {
namespace {

const char* const kDescription =
    "Prints, draws and verifies the plan of a collective: what each rank sends, receives, copies "
    "and\n"
    "reduces, in which order. It runs in one process and sends nothing.\n"
    "  moeccl-plan alltoall --algorithm hierarchical --nodes 4,4,3 --rank 2 --dot plan.dot "
    "--verify";

}  // namespace

Parsed<Options> parseOptions(int argc, const char* const* argv) {
  Parsed<Options> parsed;
  Options& options = parsed.options;
  CLI::App app(kDescription, "moeccl-plan");
  const CLI::Range some(1, kMostRanks);
  const CLI::Range numbers(0, kMostRanks - 1);
  auto* list = app.add_flag("--list", options.list, "print every collective and its algorithms");
  app.add_option("collective", options.collective, "as in MOECCL_ALGO: alltoall, dispatch, ...");
  app.add_option(
      "--algorithm", options.algorithm,
      "as in MOECCL_ALGO: hierarchical, bruck:radix=4, ... (default: the first of --list)");
  auto* nodes = app.add_option("--nodes", options.ranksPerNode, "4,4,3: the ranks of each node")
                    ->delimiter(',')
                    ->check(some);
  auto* nodeOfRank = app.add_option("--node-of-rank", options.nodeOfRank,
                                    "0,1,0,1: the node of each rank, instead of --nodes")
                         ->delimiter(',')
                         ->check(numbers)
                         ->excludes(nodes);
  app.add_option(
         "--grid", options.grid,
         "2,4,2: ranks of an MP, EP and ESP group; with ,ep-first EP groups are consecutive")
      ->delimiter(',');
  app.add_option("--experts", options.experts, "of each rank, of collectives that have experts")
      ->check(some)
      ->capture_default_str();
  app.add_option("--rank", options.rank, "print and draw this rank alone (default: all)")
      ->check(numbers);
  app.add_flag("--quiet", options.quiet, "print the plans' sizes, not their ops");
  app.add_flag("--verify", options.verify,
               "prove that the plans of all ranks together do what the collective promises");
  app.add_option("--dot", options.dotFile, "draw it, for Graphviz");
  app.add_option("--svg", options.svgFile, "draw it as a picture, by Graphviz's dot");
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
  parse(app, argc, argv, parsed, [&] {
    if (!*list && !*schedule && options.collective.empty())
      throw CLI::ValidationError("collective", "name one; --list prints them");
    if (!*list && !*schedule && !*nodes && !*nodeOfRank)
      throw CLI::ValidationError("--nodes", "give the ranks of each node, as in --nodes 4,4,3");
  });
  return parsed;
}

}  // namespace moeccl::perf::plan
