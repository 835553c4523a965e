#include "perf/layers/measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <stdexcept>

#include "perf/layers/draws.h"
#include "perf/statistics.h"

namespace moeccl::perf::layers {
namespace {

constexpr int kWarmUps = 2;
constexpr int kMostPasses = 1000;

double largestOf(const Job& job, double mine) {
  return overRanks(job.gather(std::vector{mine}), 1, Average::kMax)[0];
}

// Of one pass on the calling rank.
double secondsOf(Contender& contender, const float* input, float* output, int passes) {
  contender.barrier();
  const auto begin = std::chrono::steady_clock::now();
  contender.forward(input, output, passes);
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  return passed.count() / passes;
}

// The largest difference over the largest element, on the worst rank; not finite where an output is not, or
// where there is nothing but zeros.
double errorOf(const Job& job, const std::vector<float>& expected,
               const std::vector<float>& actual) {
  double largest = 0, difference = 0;
  bool finite = true;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    finite &= std::isfinite(expected[i]) && std::isfinite(actual[i]);
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
    difference = std::max(difference, std::abs(static_cast<double>(expected[i]) - actual[i]));
  }
  const bool valid = finite && largest > 0;
  return largestOf(job, valid ? difference / largest : std::numeric_limits<double>::infinity());
}

// Contenders of one layer with its data.
class Race {
 public:
  Race(const Layer& layer, const std::vector<Setting>& settings, const Options& options,
       const Job& job, Grids& grids)
      : options_(options), job_(job) {
    for (const Setting& setting : settings) {
      Contender contender(layer, setting, grids);
      if (contender.offered())
        contenders_.push_back(std::move(contender));
      else
        notOffered_.push_back({setting, contender.reason()});
    }
    data_.emplace(layer, contenders_.front().shapes(), job.rank(), options.seed);
    output_.resize(static_cast<std::size_t>(layer.tokens() * layer.embedding));
    for (Contender& contender : contenders_) contender.setWeights(data_->weights());
  }

  std::vector<NotOffered> notOffered() const { return notOffered_; }

  // What each computes is compared with what the first does. Throws std::runtime_error.
  std::vector<Timed> check() {
    std::vector<Timed> timed;
    std::vector<float> expected;
    for (Contender& contender : contenders_) {
      std::fill(output_.begin(), output_.end(), std::numeric_limits<float>::quiet_NaN());
      contender.forward(input(), output_.data(), 1);
      if (expected.empty()) expected = output_;
      const double error = errorOf(job_, expected, output_);
      if (!(error <= kTolerance))
        throw std::runtime_error("the output of " + contender.setting().name() + " is off by " +
                                 std::to_string(error) + " of its largest value from that of " +
                                 contenders_.front().setting().name());
      timed.push_back({contender.setting(), contender.shapes().schedule, 1, error, {}});
    }
    return timed;
  }

  // A warm pass of a contender, on the slowest rank.
  double warmSeconds(std::size_t contender) {
    contenders_[contender].forward(input(), output_.data(), kWarmUps);
    return largestOf(job_, secondsOf(contenders_[contender], input(), output_.data(), 1));
  }

  // Sets the passes of a turn, and the times.
  void run(std::vector<Timed>& timed) {
    for (std::size_t i = 0; i < timed.size(); ++i)
      timed[i].passes = static_cast<int>(
          std::clamp(std::ceil(options_.turnMs / 1000 / warmSeconds(i)), 1.0, double{kMostPasses}));

    Draws draws(options_.seed);  // the same on every rank
    std::vector<std::size_t> order(timed.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::vector<double> mine;
    for (int i = 0; i < options_.repetitions; ++i) {
      const std::size_t first = mine.size();
      mine.resize(first + order.size());
      draws.shuffle(order);
      for (const std::size_t turn : order)
        mine[first + turn] =
            secondsOf(contenders_[turn], input(), output_.data(), timed[turn].passes);
    }
    const std::vector<double> slowest = overRanks(job_.gather(mine), mine.size(), Average::kMax);
    for (std::size_t i = 0; i < slowest.size(); ++i)
      timed[i % timed.size()].seconds.push_back(slowest[i]);
  }

 private:
  const float* input() const { return data_->input(); }

  const Options& options_;
  const Job& job_;
  std::vector<Contender> contenders_;
  std::vector<NotOffered> notOffered_;
  std::optional<Data> data_;  // its shapes are known once there is a contender
  std::vector<float> output_;
};

}  // namespace

Measured measure(const Layer& layer, const Options& options, const Job& job, Grids& grids) {
  Race race(layer, settings(), options, job, grids);
  Measured measured{race.check(), race.notOffered()};
  race.run(measured.timed);
  return measured;
}

double bytesOnNode(const Layer& layer, const Job& job) {
  double bytes = bytesOfData(layer);
  for (const Setting& setting : settings()) bytes += bytesOfSchedule(layer, setting.schedule);
  const std::vector<int> ranksPerNode = job.ranksPerNode();
  return bytes * *std::max_element(ranksPerNode.begin(), ranksPerNode.end());
}

int chooseScale(const std::vector<Layer>& layers, const Options& options, const Job& job,
                Grids& grids) {
  std::vector<Layer> sorted = layers;
  std::ranges::stable_sort(sorted, {}, &Layer::work);
  const Layer& large = sorted[sorted.size() * 3 / 4];
  const std::vector<Setting> baseline = {settings().front()};
  const auto tooMuch = [&](int scale) {
    const Layer layer = scaled(large, scale);
    if (bytesOnNode(layer, job) > options.memoryGib * (1 << 30)) return true;
    const double seconds = Race(layer, baseline, options, job, grids).warmSeconds(0);
    const double turn = std::max(seconds, options.turnMs / 1000);
    const double turns = options.repetitions * turn + (kWarmUps + 2) * seconds;
    return turns * static_cast<double>(settings().size()) > options.layerSeconds;
  };
  int scale = kLargestScale;
  while (scale > 1 && !tooMuch(scale / 2)) scale /= 2;
  return scale;
}

}  // namespace moeccl::perf::layers
