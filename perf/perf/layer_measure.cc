// Checks that all candidates of a layer compute the same, and times them in turns; the closest ones
// have further turns. Layers are scaled down to this machine here, too.
#include "perf/perf/layer_measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>

#include "perf/common/statistics.h"

namespace moeccl::perf::layers {
namespace {

constexpr int kWarmUps = 2;
constexpr int kMostPasses = 1000;
constexpr double kClose = 1.3;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double largestOf(const Job& job, double mine) {
  return job.overRanks()(std::vector{mine}, Average::kMax)[0];
}

// Seconds of one pass on the calling rank.
double secondsOf(LayerCandidate& candidate, int passes) {
  candidate.barrier();
  if (passes > 1) candidate.run(1);  // what came before has left its own things in the caches
  const auto begin = std::chrono::steady_clock::now();
  candidate.run(passes);
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  return passed.count() / passes;
}

// The largest difference over the largest element, both over all ranks: a rank's part may well be
// nothing but zeros, and so may be all of the gate's gradient, as with one expert. Infinite where
// something is not finite.
double errorOf(const Job& job, std::span<const float> expected, std::span<const float> actual) {
  double largest = 0, difference = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double apart = std::abs(static_cast<double>(expected[i]) - actual[i]);
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
    difference = std::isfinite(apart) ? std::max(difference, apart) : kInfinity;
  }
  largest = largestOf(job, largest);
  difference = largestOf(job, difference);
  return difference > 0 ? difference / largest : 0;
}

// Candidates of one layer with its data.
class LayerBenchmark {
 public:
  LayerBenchmark(const Layer& layer, const std::vector<Setting>& settings, const Options& options,
                 const Job& job, Grids& grids)
      : options_(options), job_(job) {
    for (const Setting& setting : settings) {
      LayerCandidate candidate(layer, setting, options.pass, grids, learns(setting));
      if (candidate.offered())
        candidates_.push_back(std::move(candidate));
      else
        notOffered_.push_back({setting, candidate.reason()});
    }
    if (candidates_.empty())
      throw std::runtime_error("--schedules: the layer is offered under none of them: " +
                               notOffered_.front().reason);
    data_.emplace(layer, candidates_.front().shapes(), options.pass, job.rank(), options.seed);
    for (LayerCandidate& candidate : candidates_) candidate.setData(*data_);
  }

  std::vector<Absent> notOffered() const { return notOffered_; }

  // Compares what each computes with what the first does. Throws std::runtime_error.
  std::vector<Timed> check() {
    std::vector<Timed> timed;
    std::vector<std::vector<float>> expected;
    std::map<LayerCandidate::Work, std::size_t> first;  // of those that do the same
    for (LayerCandidate& candidate : candidates_) {
      data_->prepare();
      candidate.run(1);
      if (expected.empty()) expected = firstResults();
      const double error = compare(expected, candidate.setting());
      // One that learns may do something else later.
      const std::size_t timedAs = learns(candidate.setting())
                                      ? timed.size()
                                      : first.emplace(candidate.work(), timed.size()).first->second;
      timed.push_back({candidate.setting(), candidate.shapes().schedule, 1, error, timedAs});
    }
    return timed;
  }

  // A warm pass of a candidate, on the slowest rank.
  double warmSeconds(std::size_t candidate) {
    candidates_[candidate].run(kWarmUps);
    return largestOf(job_, secondsOf(candidates_[candidate], 1));
  }

  // Sets the passes of a turn, and the times. Candidates that learn do so before.
  void run(std::vector<Timed>& timed) {
    for (LayerCandidate& candidate : candidates_)
      if (learns(candidate.setting())) candidate.run(options_.learn);
    std::vector<std::size_t> entries;
    for (std::size_t i = 0; i < timed.size(); ++i) {
      if (timed[i].timedAs != i) continue;
      entries.push_back(i);
      timed[i].passes = static_cast<int>(
          std::clamp(std::ceil(options_.turnMs / 1000 / warmSeconds(i)), 1.0, double{kMostPasses}));
    }
    Draws draws(options_.seed);  // the same on every rank
    takeTurns(timed, entries, options_.repetitions, draws);
    takeTurns(timed, closeOnes(timed, entries), options_.closeRepetitions, draws);
    for (std::size_t i = 0; i < timed.size(); ++i) {
      Timed& candidate = timed[i];
      candidate.followed = candidates_[i].shapes().schedule;
      candidate.passes = timed[candidate.timedAs].passes;
      candidate.seconds = timed[candidate.timedAs].seconds;
      candidate.repeated = timed[candidate.timedAs].repeated;
      candidate.disturbed = timed[candidate.timedAs].disturbed;
    }
  }

 private:
  bool learns(const Setting& setting) const {
    return options_.learn > 0 && setting.schedule == moecclScheduleAuto;
  }
  // Turns of those candidates; adds the times.
  void takeTurns(std::vector<Timed>& timed, const std::vector<std::size_t>& entries,
                 int repetitions, Draws& draws) {
    const std::vector<Turns> turns = perf::takeTurns(
        entries.size(), repetitions, draws, Average::kMax, job_.overRanks(), [&](std::size_t i) {
          return std::vector{secondsOf(candidates_[entries[i]], timed[entries[i]].passes)};
        });
    for (std::size_t i = 0; i < entries.size(); ++i) {
      Timed& entry = timed[entries[i]];
      for (const std::vector<double>& turn : turns[i].values) entry.seconds.push_back(turn[0]);
      entry.repeated += turns[i].repeated;
      entry.disturbed += turns[i].disturbed;
    }
  }

  // The candidates that may be the best, and so decide what another choice has cost.
  static std::vector<std::size_t> closeOnes(const std::vector<Timed>& timed,
                                            const std::vector<std::size_t>& entries) {
    const auto medianOf = [&](std::size_t entry) { return quantileOf(timed[entry].seconds, 0.5); };
    double least = kInfinity;
    for (const std::size_t entry : entries) least = std::min(least, medianOf(entry));
    std::vector<std::size_t> close;
    for (const std::size_t entry : entries)
      if (medianOf(entry) <= kClose * least) close.push_back(entry);
    return close;
  }

  // The results that all others are compared with. Among zeros nothing would be wrong.
  std::vector<std::vector<float>> firstResults() const {
    std::vector<std::vector<float>> all;
    for (const ResultArray& result : data_->results())
      all.emplace_back(result.values.begin(), result.values.end());
    if (!(largestOf(job_, *std::ranges::max_element(all[0])) > 0))
      throw std::runtime_error("the output of " + candidates_.front().setting().name() +
                               " has no element above 0");
    return all;
  }

  // The largest error of the results at hand.
  double compare(const std::vector<std::vector<float>>& expected, const Setting& setting) const {
    double largest = 0;
    const std::vector<ResultArray> results = data_->results();
    for (std::size_t i = 0; i < results.size(); ++i) {
      const double error = errorOf(job_, expected[i], results[i].values);
      if (!(error <= kTolerance))
        throw std::runtime_error(setting.name() + ": the " + results[i].name + " is off by " +
                                 std::to_string(error) + " of its largest value from that of " +
                                 candidates_.front().setting().name());
      largest = std::max(largest, error);
    }
    return largest;
  }

  const Options& options_;
  const Job& job_;
  std::vector<LayerCandidate> candidates_;
  std::vector<Absent> notOffered_;
  std::optional<Data> data_;  // its shapes are known once there is a candidate
};

}  // namespace

Measured measure(const Layer& layer, const Options& options, const Job& job, Grids& grids) {
  LayerBenchmark benchmark(layer, settings(layer, options, job.ranksPerNode()), options, job,
                           grids);
  Measured measured{benchmark.check(), benchmark.notOffered()};
  benchmark.run(measured.timed);
  return measured;
}

double bytesOnNode(const Layer& layer, const Options& options, const Job& job) {
  double bytes = bytesOfData(layer, options.pass);
  const std::vector<int> ranksPerNode = job.ranksPerNode();
  for (const Setting& setting : settings(layer, options, ranksPerNode))
    bytes += bytesOfSchedule(layer, setting.schedule, options.pass);
  return bytes * *std::max_element(ranksPerNode.begin(), ranksPerNode.end());
}

int chooseScale(const std::vector<Layer>& layers, const Options& options, const Job& job) {
  Grids grids(job);
  std::vector<Layer> sorted = layers;
  std::ranges::stable_sort(sorted, {}, &Layer::work);
  const Layer& large = sorted[sorted.size() * 3 / 4];
  const std::vector<Setting> all = settings(large, options, job.ranksPerNode()),
                             baseline = {{moecclScheduleBaseline, ""}};
  const auto tooMuch = [&](int scale) {
    const Layer layer = scaled(large, scale);
    if (bytesOnNode(layer, options, job) > options.memoryGib * (1 << 30)) return true;
    const double seconds = LayerBenchmark(layer, baseline, options, job, grids).warmSeconds(0);
    const double turn = std::max(seconds, options.turnMs / 1000);
    const double turns = options.repetitions * turn + (kWarmUps + 2) * seconds;
    return turns * static_cast<double>(all.size()) > options.layerSeconds;
  };
  int scale = kLargestScale;
  while (scale > 1 && !tooMuch(scale / 2)) scale /= 2;
  return scale;
}

}  // namespace moeccl::perf::layers
