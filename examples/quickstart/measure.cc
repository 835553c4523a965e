// Runs a layer, takes its time, and compares its bytes and results.
#include "measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <stdexcept>

namespace quickstart {
namespace {

// One rank's part of a row, as it is gathered.
struct Verdict {
  double error = 0;  // largest of all passes
  double sent = 0;
  std::int64_t wrongPass = -1;  // the first one; -1: none
  char what[120] = "";          // was wrong with it
};

// Large or not a number: whichever is further from right.
double worse(double a, double b) { return std::isnan(a) || a > b ? a : b; }

// What is wrong with one pass; "": nothing.
std::string complaint(const Problem& problem, const moecclMoeStats_t& stats, double error,
                      double tolerance) {
  const moe_reference::Result& expected = problem.expected;
  const auto experts = static_cast<std::size_t>(problem.layer.config.experts);
  char text[sizeof Verdict::what] = "";
  if (!(error <= tolerance))
    std::snprintf(text, sizeof text, "the output is off by %.3g of its largest value, not %.3g",
                  error, tolerance);
  else if (!std::equal(stats.assigned, stats.assigned + experts, expected.assigned.begin()) ||
           !std::equal(stats.kept, stats.kept + experts, expected.kept.begin()))
    return "the experts' loads are not the reference's";
  else if (stats.droppedChoices != static_cast<std::int64_t>(expected.placeless.size()))
    std::snprintf(text, sizeof text, "%lld choices were dropped, not %zu",
                  static_cast<long long>(stats.droppedChoices), expected.placeless.size());
  else if (!(std::abs(stats.auxiliaryLoss - expected.auxiliaryLoss) <=
             1e-9 * expected.auxiliaryLoss))
    std::snprintf(text, sizeof text, "the auxiliary loss is %.12g, not %.12g", stats.auxiliaryLoss,
                  expected.auxiliaryLoss);
  return text;
}

// A layer of its own grid and communicator, so that the algorithm is this row's.
class RunningLayer {
 public:
  RunningLayer(moecclComm_t world, const Problem& problem, moecclSchedule_t schedule,
               const std::string& algorithm) {
    int rank = 0;
    moecclCommUserRank(world, &rank);
    const bool baseline = schedule == moecclScheduleBaseline;
    const std::string algorithms =
        (baseline ? "alltoall=" + algorithm : "dispatch=" + algorithm + ";combine=" + algorithm) +
        ";allgather=linear;allreduce=linear";
    moecclConfig_t config = MOECCL_CONFIG_INITIALIZER;
    config.algorithms = algorithms.c_str();
    const moecclResult_t result = moecclCommSplit(world, 0, rank, &comm_, &config);
    if (result == moecclInvalidArgument)
      throw std::invalid_argument(std::string(baseline ? "--alltoall: " : "--dispatch: ") +
                                  moecclGetLastError(world));
    if (result != moecclSuccess) fail("setting " + algorithms, world);
    if (moecclGridCreate(comm_, problem.grid, &grid_) != moecclSuccess)
      fail("making the grid", comm_);
    moecclMoeConfig_t layerConfig = problem.layer.config;
    layerConfig.schedule = schedule;
    if (moecclMoeLayerCreate(grid_, &layerConfig, &layer_) != moecclSuccess)
      fail("making the layer", nullptr);
    moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
    if (moecclMoeLayerGetShapes(layer_, &shapes) != moecclSuccess)
      fail("asking for the layer's shapes", nullptr);
    shard_ = moe_reference::shardOf(problem.layer, shapes);
    if (moecclMoeLayerSetWeights(layer_, &shard_.weights) != moecclSuccess)
      fail("setting the weights", nullptr);
  }

  void forward(const void* input, void* output) {
    if (moecclMoeForward(layer_, input, output, nullptr) != moecclSuccess)
      fail("the forward pass", nullptr);
  }

  moecclMoeStats_t stats() const {
    moecclMoeStats_t stats = MOECCL_MOE_STATS_INITIALIZER;
    if (moecclMoeGetStats(layer_, &stats) != moecclSuccess) fail("asking for statistics", nullptr);
    return stats;
  }

  // Collective.
  void close() {
    if (moecclMoeLayerDestroy(layer_) != moecclSuccess ||
        moecclGridDestroy(grid_) != moecclSuccess || moecclCommDestroy(comm_) != moecclSuccess)
      fail("taking the layer down", nullptr);
  }

 private:
  moecclComm_t comm_ = nullptr;
  moecclGrid_t grid_ = nullptr;
  moecclMoeLayer_t layer_ = nullptr;
  moe_reference::Shard shard_;
};

template <typename T>
std::vector<T> gather(moecclComm_t comm, const T* mine, std::size_t count) {
  int ranks = 0;
  moecclCommCount(comm, &ranks);
  std::vector<T> all(static_cast<std::size_t>(ranks) * count);
  if (moecclAllGather(mine, all.data(), count * sizeof(T), moecclUint8, comm, nullptr) !=
      moecclSuccess)
    fail("gathering results", comm);
  return all;
}

}  // namespace

[[noreturn]] void fail(const std::string& what, moecclComm_t comm) {
  std::fflush(stdout);
  std::fprintf(stderr, "quickstart: %s: %s\n", what.c_str(), moecclGetLastError(comm));
  std::_Exit(1);
}

void barrier(moecclComm_t comm) {
  const char mine = 0;
  gather(comm, &mine, 1);
}

std::int64_t sentSoFar(const Options& options) {
  if (options.uplinkCounter.empty()) return 0;
  std::int64_t bytes = -1;
  std::ifstream file(options.uplinkCounter);
  if (!(file >> bytes)) {
    std::fprintf(stderr, "quickstart: --uplink-counter %s holds no number\n",
                 options.uplinkCounter.c_str());
    std::_Exit(1);
  }
  return bytes;
}

Row measure(moecclComm_t world, const Problem& problem, const Options& options,
            moecclSchedule_t schedule, const std::string& algorithm) {
  using Clock = std::chrono::steady_clock;
  RunningLayer layer(world, problem, schedule, algorithm);
  const moe_reference::Elements input = moe_reference::encode(moecclFloat32, problem.input);
  const moe_reference::Elements poison = moe_reference::encode(
      moecclFloat32,
      std::vector<double>(problem.input.size(), std::numeric_limits<double>::quiet_NaN()));
  moe_reference::Elements output;
  std::vector<double> seconds;
  Verdict verdict;
  const auto pass = [&](std::int64_t number) {
    // What the last pass has written must not count for this one.
    output = poison;
    barrier(world);
    const Clock::time_point begun = Clock::now();
    layer.forward(input.data(), output.data());
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begun).count());
    const double error = moe_reference::largestError(moe_reference::decode(moecclFloat32, output),
                                                     problem.expected.output);
    verdict.error = worse(error, verdict.error);
    const std::string wrong = complaint(problem, layer.stats(), error, options.tolerance);
    if (wrong.empty() || verdict.wrongPass >= 0) return;
    verdict.wrongPass = number;
    std::snprintf(verdict.what, sizeof verdict.what, "%s", wrong.c_str());
  };

  for (std::int64_t i = 0; i < options.warmUp; ++i) pass(i);
  seconds.clear();
  barrier(world);  // nothing of the warm-up is under way any more
  const std::int64_t before = sentSoFar(options);
  barrier(world);  // every node has read its counter
  for (std::int64_t i = 0; i < options.iterations; ++i) pass(options.warmUp + i);
  barrier(world);
  verdict.sent =
      static_cast<double>(sentSoFar(options) - before) / static_cast<double>(options.iterations);
  barrier(world);
  layer.close();

  Row row{schedule, algorithm, seconds, {}, 0, {}};
  const std::vector<double> allSeconds = gather(world, seconds.data(), seconds.size());
  for (std::size_t i = 0; i < allSeconds.size(); ++i) {
    double& slowest = row.seconds[i % seconds.size()];
    slowest = std::max(slowest, allSeconds[i]);
  }
  const std::vector<Verdict> verdicts = gather(world, &verdict, 1);
  for (std::size_t rank = 0; rank < verdicts.size(); ++rank) {
    const Verdict& each = verdicts[rank];
    row.sentByRank.push_back(each.sent);
    row.largestError =
        std::isnan(row.largestError) ? row.largestError : worse(each.error, row.largestError);
    if (each.wrongPass >= 0)
      row.wrong.push_back("rank " + std::to_string(rank) + ", pass " +
                          std::to_string(each.wrongPass) + ": " + each.what);
  }
  return row;
}

const char* nameOf(moecclSchedule_t schedule) {
  return schedule == moecclScheduleS1 ? "S1" : "baseline";
}

}  // namespace quickstart
