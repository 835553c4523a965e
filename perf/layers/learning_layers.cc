// learning-layers: MoE layers drawn from Parm's table III that learn while they run, and whether
// they then run under the schedule that the right profile chooses. See perf/layers/README.md.
#include <moeccl/model.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "perf/common/job.h"
#include "perf/common/number_checks.h"
#include "perf/common/parse.h"
#include "perf/common/statistics.h"
#include "perf/common/tool.h"
#include "perf/layers/candidate.h"
#include "perf/layers/space.h"
#include "perf/layers/turns.h"

namespace moeccl::perf::layers {
namespace {

struct LearningOptions {
  int layers = 12, scale = 32, steps = 200, turns = 9;
  std::uint64_t seed = 1;
  moecclPass_t pass = moecclPassForward;
  double turnMs = 100;
  std::string right;  // profile
  bool explain = false;
};

Parsed<LearningOptions> parse(int argc, const char* const* argv) {
  Parsed<LearningOptions> parsed;
  LearningOptions& options = parsed.options;
  CLI::App app(
      "Runs MoE layers that learn, and prints under which schedule each began and ended, "
      "beside the choice\nof the right profile and what all schedules take.",
      "learning-layers");
  app.add_option("-l,--layers", options.layers, "how many layers to draw")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--scale", options.scale, "by which L, M and H are divided")
      ->check(CLI::Range(1, 128))
      ->capture_default_str();
  app.add_option("--steps", options.steps, "of each layer that learns")
      ->check(kPositive)
      ->capture_default_str();
  app.add_option("--seed", options.seed, "of the draws, the weights and the tokens")
      ->check(kNotNegative)
      ->capture_default_str();
  app.add_option("--turns", options.turns, "in which each schedule is timed")
      ->check(kPositive)
      ->capture_default_str();
  app.add_option("--turn-ms", options.turnMs, "how long a turn takes at least")
      ->check(kPositive)
      ->capture_default_str();
  const std::map<std::string, moecclPass_t> passes{{"forward", moecclPassForward},
                                                   {"both", moecclPassBoth}};
  app.add_option("--pass", options.pass, "forward or both (default: forward)")
      ->transform(CLI::CheckedTransformer(passes));
  app.add_option("--right", options.right, "a profile that is right, whose choice is printed, too")
      ->check(CLI::ExistingFile);
  app.add_flag("--explain", options.explain, "print what each layer has learned");
  parse(app, argc, argv, parsed);
  return parsed;
}

// A communicator that chooses by the right profile, with grids on it.
class Right {
 public:
  Right(const Job& job, const std::string& path) {
    moecclComm_t comm = nullptr;
    require(moecclCommSplit(job.comm(), 0, job.rank(), &comm, nullptr), "split", job.comm());
    comm_.reset(comm);
    moecclProfile_t profile = nullptr;
    require(moecclProfileLoad(path.c_str(), &profile), "load the profile", nullptr);
    require(moecclCommSetProfile(comm, profile), "choose by the profile", comm);
    require(moecclProfileDestroy(profile), "free the profile", nullptr);
  }

  moecclSchedule_t choice(const Layer& layer, moecclPass_t pass) const {
    moecclGrid_t grid = nullptr;
    require(moecclGridCreate(comm_.get(), layer.grid, &grid), "make the grid", comm_.get());
    const Grid owner(grid);
    const moecclMoeConfig_t config = layer.config(moecclScheduleAuto, pass);
    moecclMoeLayer_t made = nullptr;
    require(moecclMoeLayerCreate(grid, &config, &made), "make the layer", nullptr);
    moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
    require(moecclMoeLayerGetShapes(made, &shapes), "ask for the shapes", nullptr);
    require(moecclMoeLayerDestroy(made), "free the layer", nullptr);
    return shapes.schedule;
  }

 private:
  Comm comm_;
};

// One layer: what it did in its steps, then all schedules in turns.
class OneLayer {
 public:
  OneLayer(const Layer& layer, const LearningOptions& options, const Job& job)
      : options_(options),
        job_(job),
        grids_(job),
        learner_(layer, {moecclScheduleAuto, ""}, options.pass, grids_, true),
        data_(layer, learner_.shapes(), options.pass, job.rank(), options.seed) {
    learner_.setData(data_);
    for (const moecclSchedule_t schedule : everySchedule()) {
      if (schedule == moecclScheduleAuto) continue;
      LayerCandidate candidate(layer, {schedule, ""}, options.pass, grids_);
      if (!candidate.offered()) continue;
      fixed_.push_back(std::move(candidate));
      fixed_.back().setData(data_);
    }
  }

  moecclSchedule_t schedule() const { return learner_.shapes().schedule; }
  std::string learned() const { return learner_.learned(); }

  // "S1 64:S2": the first, and at which steps there were others.
  std::string learn() {
    std::string text = moecclScheduleName(schedule());
    moecclSchedule_t before = schedule();
    for (int step = 0; step < options_.steps; ++step) {
      learner_.run(1);
      if (schedule() == before) continue;
      before = schedule();
      text += " " + std::to_string(step) + ":" + moecclScheduleName(before);
    }
    return text;
  }

  // Seconds of a pass under each schedule, turn by turn, on the slowest rank.
  std::map<moecclSchedule_t, std::vector<double>> time() {
    Draws draws(options_.seed);
    std::vector<int> passes;
    for (LayerCandidate& candidate : fixed_) {
      candidate.run(2);
      passes.push_back(
          std::max(1, static_cast<int>(options_.turnMs / 1000 / secondsOf(candidate, 1))));
    }
    std::map<moecclSchedule_t, std::vector<double>> all;
    for (int turn = 0; turn < options_.turns; ++turn) {
      const std::vector<double> mine = inTurns(
          fixed_.size(), draws, [&](std::size_t i) { return secondsOf(fixed_[i], passes[i]); });
      for (std::size_t i = 0; i < fixed_.size(); ++i)
        all[fixed_[i].setting().schedule].push_back(mine[i]);
    }
    return all;
  }

 private:
  double secondsOf(LayerCandidate& candidate, int passes) {
    candidate.barrier();
    candidate.run(1);
    const auto begin = std::chrono::steady_clock::now();
    candidate.run(passes);
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    return std::ranges::max(job_.gather(std::vector{passed.count() / passes}));
  }

  const LearningOptions& options_;
  const Job& job_;
  Grids grids_;
  LayerCandidate learner_;
  Data data_;
  std::vector<LayerCandidate> fixed_;
};

// Its median is no more than noise above the other's.
bool asGood(const std::vector<double>& times, const std::vector<double>& other) {
  const auto quartile = [](const std::vector<double>& all, double at) {
    return quantileOf(all, at);
  };
  return quartile(times, 0.5) <= 1.02 * quartile(other, 0.5) ||
         quartile(times, 0.25) <= quartile(other, 0.75);
}

void run(const LearningOptions& options, const Job& job) {
  const bool prints = job.rank() == 0;
  std::optional<Right> right;
  if (!options.right.empty()) right.emplace(job, options.right);
  int good = 0, best = 0, changed = 0;
  if (prints)
    std::printf("# N_MP EP ESP     L     M     H   E  k  %-24s %-9s ms under each\n", "ran under",
                "right");
  for (const Layer& drawn : drawLayers(job.ranks(), options.layers, options.seed, 0)) {
    const Layer layer = scaled(drawn, options.scale);
    const moecclSchedule_t wanted = right ? right->choice(layer, options.pass) : moecclScheduleAuto;
    OneLayer one(layer, options, job);
    const std::string ran = one.learn();
    const moecclSchedule_t now = one.schedule();
    const auto times = one.time();
    const auto fastest = std::ranges::min_element(
        times, {}, [](const auto& it) { return quantileOf(it.second, 0.5); });
    const bool asRight = !right || asGood(times.at(now), times.at(wanted));
    good += asRight;
    best += asGood(times.at(now), fastest->second);
    changed += ran.find(':') != std::string::npos;
    if (!prints) continue;
    std::printf("  %4d %2d %3d %5lld %5lld %5lld %3lld %2lld  %-24s %-9s", layer.grid.nMp,
                layer.grid.nEp, layer.grid.nEsp, static_cast<long long>(layer.tokens()),
                static_cast<long long>(layer.embedding), static_cast<long long>(layer.hidden),
                static_cast<long long>(layer.experts), static_cast<long long>(layer.topK),
                ran.c_str(), right ? moecclScheduleName(wanted) : "-");
    for (const auto& [schedule, all] : times)
      std::printf(" %s %.3f", moecclScheduleName(schedule), 1e3 * quantileOf(all, 0.5));
    std::printf("%s\n", asRight ? "" : "  (slower)");
    if (options.explain) std::printf("%s", one.learned().c_str());
    std::fflush(stdout);
  }
  if (prints)
    std::printf(
        "%d of %d layers ran as the right profile chooses or as fast, %d as fast as the best "
        "schedule; %d changed or tried another\n",
        good, options.layers, best, changed);
}

int main(int argc, char** argv) {
  const Parsed<LearningOptions> parsed = parse(argc, argv);
  if (const std::optional<int> code = answered("learning-layers", parsed)) return *code;
  return runRanks("learning-layers", {}, [&](Job& job) {
    run(parsed.options, job);
    return EXIT_SUCCESS;
  });
}

}  // namespace
}  // namespace moeccl::perf::layers

int main(int argc, char** argv) { return moeccl::perf::layers::main(argc, argv); }
