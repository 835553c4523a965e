// Runs one MoE layer over English text on all ranks, under two schedules and several
// algorithms of each, checks every result against a single-process reference, and prints one table.
#include <moeccl/moeccl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <set>
#include <stdexcept>

#include "measure.h"
#include "options.h"
#include "report.h"
#include "traffic.h"
#include "words.h"

namespace quickstart {
namespace {

// The environment speaks last, and would make several rows the same.
void requireOwnChoices() {
  for (const char* variable : {"MOECCL_ALGO", "MOECCL_SCHEDULE"})
    if (std::getenv(variable) != nullptr)
      throw std::invalid_argument(std::string(variable) +
                                  " is set; unset it, the rows differ in what it decides");
}

Topology topologyOf(moecclComm_t world) {
  Topology topology;
  int ranks = 0;
  if (moecclCommCount(world, &ranks) != moecclSuccess ||
      moecclCommNodeCount(world, &topology.nodes) != moecclSuccess)
    fail("asking for the topology", world);
  topology.nodeOfRank.resize(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank)
    if (moecclCommNodeOfRank(world, rank, &topology.nodeOfRank[rank]) != moecclSuccess)
      fail("asking for the topology", world);
  return topology;
}

moecclGridShape_t gridOf(const Options& options, int ranks) {
  const int pair = ranks % 2 == 0 ? 2 : 1;
  moecclGridShape_t grid{options.nMp, options.nEp, options.nEsp, moecclOrderEspEp};
  if (grid.nMp == 0) grid.nMp = pair;
  if (grid.nEsp == 0) grid.nEsp = grid.nEp == 0 ? pair : std::max(1, ranks / grid.nEp);
  if (grid.nEp == 0) grid.nEp = std::max(1, ranks / grid.nEsp);
  if (static_cast<std::int64_t>(grid.nEp) * grid.nEsp != ranks || ranks % grid.nMp != 0)
    throw std::invalid_argument("--ep " + std::to_string(grid.nEp) + " times --esp " +
                                std::to_string(grid.nEsp) + " must be the number of ranks, " +
                                std::to_string(ranks) + ", and --mp " + std::to_string(grid.nMp) +
                                " must divide it");
  return grid;
}

std::vector<double> normal(std::mt19937_64& random, std::int64_t count, std::int64_t summands) {
  std::normal_distribution<float> value(0, 1 / std::sqrt(static_cast<float>(summands)));
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& each : values) each = value(random);
  return values;
}

moe_reference::Layer layerOf(const Options& options, const moecclGridShape_t& grid) {
  const std::int64_t experts = options.experts == 0 ? 2 * grid.nEp : options.experts;
  const std::int64_t embedding = options.embedding, hidden = options.hidden;
  if (experts % grid.nEp != 0 || hidden % grid.nEsp != 0 || options.topK > experts)
    throw std::invalid_argument("--experts " + std::to_string(experts) +
                                " must be a multiple of --ep " + std::to_string(grid.nEp) +
                                " and at least --top-k " + std::to_string(options.topK) +
                                ", and --hidden " + std::to_string(hidden) +
                                " a multiple of --esp " + std::to_string(grid.nEsp));
  moe_reference::Layer layer;
  layer.config.tokens = options.tokens;
  layer.config.embedding = embedding;
  layer.config.hidden = hidden;
  layer.config.experts = experts;
  layer.config.topK = options.topK;
  layer.config.capacityFactor = options.capacityFactor;
  layer.nMp = grid.nMp;
  std::mt19937_64 random(options.seed + 1);
  layer.gate = normal(random, embedding * experts, embedding);
  layer.w1 = normal(random, experts * embedding * hidden, embedding);
  layer.b1 = normal(random, experts * hidden, embedding);
  layer.w2 = normal(random, experts * hidden * embedding, hidden);
  layer.b2 = normal(random, experts * embedding, hidden);
  return layer;
}

// The sum over MP groups of what is known of the caller's.
std::vector<std::int64_t> sumOverMpGroups(moecclComm_t world, int nMp,
                                          const std::vector<std::int64_t>& mine) {
  int ranks = 0;
  moecclCommCount(world, &ranks);
  std::vector<std::int64_t> all(static_cast<std::size_t>(ranks) * mine.size());
  if (moecclAllGather(mine.data(), all.data(), mine.size(), moecclInt64, world, nullptr) !=
      moecclSuccess)
    fail("gathering loads", world);
  std::vector<std::int64_t> sum(mine.size(), 0);
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(ranks); rank += nMp)
    for (std::size_t i = 0; i < mine.size(); ++i) sum[i] += all[rank * mine.size() + i];
  return sum;
}

class Quickstart {
 public:
  Quickstart(moecclComm_t world, const Options& options)
      : world_(world), options_(options), topology_(topologyOf(world)) {
    moecclCommUserRank(world, &rank_);
    problem_.grid = gridOf(options, topology_.ranks());
    problem_.layer = layerOf(options, problem_.grid);
    const int batches = topology_.ranks() / problem_.grid.nMp;
    words_ = readWords(options.texts);
    needed_ = options.tokens * batches;
    if (static_cast<std::int64_t>(words_.numbers.size()) < needed_)
      throw std::invalid_argument("the text has " + std::to_string(words_.numbers.size()) +
                                  " words, and " + std::to_string(batches) + " MP groups of " +
                                  std::to_string(options.tokens) + " tokens need " +
                                  std::to_string(needed_) + "; take fewer --tokens or more --text");
  }

  // 0, or 1 when a result was wrong.
  int run() {
    say("%d ranks on %d node%s: N_MP %d, N_EP %d, N_ESP %d. %lld tokens per MP group, embedding "
        "%lld,\n"
        "hidden %lld, %lld experts, %lld per token.\n",
        topology_.ranks(), topology_.nodes, topology_.nodes == 1 ? "" : "s", problem_.grid.nMp,
        problem_.grid.nEp, problem_.grid.nEsp, static_cast<long long>(options_.tokens),
        static_cast<long long>(options_.embedding), static_cast<long long>(options_.hidden),
        static_cast<long long>(problem_.layer.config.experts),
        static_cast<long long>(options_.topK));
    say("Computing the reference, each MP group by itself in plain loops ...\n");
    const std::int64_t batch = rank_ / problem_.grid.nMp;
    const std::vector<float> table =
        embeddingTable(words_.different, options_.embedding, options_.seed);
    const std::vector<float> input =
        embed(words_, batch * options_.tokens, options_.tokens, table, options_.embedding);
    problem_.input.assign(input.begin(), input.end());
    problem_.expected = moe_reference::forward(problem_.layer, problem_.input.data());

    std::vector<Row> rows;
    for (const moecclSchedule_t schedule : {moecclScheduleBaseline, moecclScheduleS1})
      for (const std::string& algorithm :
           schedule == moecclScheduleBaseline ? options_.allToAll : options_.dispatch) {
        say("Running %s with %s: %lld passes, the last %lld of them timed ...\n", nameOf(schedule),
            algorithm.c_str(), static_cast<long long>(options_.warmUp + options_.iterations),
            static_cast<long long>(options_.iterations));
        rows.push_back(measure(world_, problem_, options_, schedule, algorithm));
      }
    return report(rows);
  }

 private:
  template <typename... Values>
  void say(const char* format, Values... values) const {
    if (rank_ != 0) return;
    std::printf(format, values...);
    std::fflush(stdout);
  }

  int report(const std::vector<Row>& rows) const {
    std::vector<std::int64_t> loads = problem_.expected.assigned;
    loads.push_back(static_cast<std::int64_t>(problem_.expected.placeless.size()));
    loads = sumOverMpGroups(world_, problem_.grid.nMp, loads);
    const std::int64_t dropped = loads.back();
    loads.pop_back();
    const std::set<std::int64_t> different(words_.numbers.begin(),
                                           words_.numbers.begin() + needed_);
    bool wrong = false;
    for (const Row& row : rows) wrong = wrong || !row.wrong.empty();
    if (rank_ == 0) {
      const Report report{options_, topology_, problem_,
                          rows,     needed_,   static_cast<std::int64_t>(different.size()),
                          loads,    dropped};
      printTable(report);
      for (const Row& row : rows)
        for (const std::string& text : row.wrong)
          std::printf("WRONG: %s with %s, %s\n", nameOf(row.schedule), row.algorithm.c_str(),
                      text.c_str());
      if (!wrong) printReading(report);
      std::fflush(stdout);
    }
    return wrong ? 1 : 0;
  }

  moecclComm_t world_;
  const Options& options_;
  Topology topology_;
  int rank_ = 0;
  Problem problem_;
  Words words_;
  std::int64_t needed_ = 0;
};

int complain(const std::exception& error) {
  std::fprintf(stderr, "quickstart: %s\n", error.what());
  return 2;
}

int main(int count, char** arguments) {
  Options options;
  try {
    options = parseOptions(count, arguments);
    if (options.help) return std::printf("%s", usage().c_str()) < 0;
    requireOwnChoices();
    if (options.checkOnly) return 0;
  } catch (const std::exception& error) {
    return complain(error);
  }

  moecclComm_t world = nullptr;
  if (moecclCommInitEnv(&world, nullptr) != moecclSuccess) fail("joining", nullptr);
  int result = 0;
  try {
    result = Quickstart(world, options).run();
  } catch (const std::exception& error) {
    // The same on all ranks, and none leaves before the others: one voice is enough.
    int rank = 0;
    moecclCommUserRank(world, &rank);
    if (rank == 0) complain(error);
    result = 2;
  }
  if (moecclCommDestroy(world) != moecclSuccess) fail("leaving", nullptr);
  return result;
}

}  // namespace
}  // namespace quickstart

int main(int count, char** arguments) { return quickstart::main(count, arguments); }
