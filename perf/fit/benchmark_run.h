// All that a run of moeccl-fit measures, in its order and within its budget, and what it thinks of
// that.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "perf/fit/budget.h"
#include "perf/fit/judgement.h"
#include "perf/fit/layers.h"
#include "perf/fit/options.h"
#include "perf/fit/pairs.h"
#include "perf/fit/processors.h"
#include "perf/fit/profile.h"
#include "perf/fit/progress.h"
#include "perf/fit/sweep.h"
#include "perf/fit/targets.h"

namespace moeccl::perf {

class BenchmarkRun {
 public:
  // Makes all grids. Collective. Throws std::runtime_error.
  BenchmarkRun(const FitOptions& options, Team& team);

  // Adds samples to `profile` on rank 0. Collective. Throws Interrupted, std::runtime_error, and
  // without --force NoProfile.
  void run(ProfileBuilder& profile);

  const std::vector<moecclGridShape_t>& shapes() const { return shapes_; }
  // For people: what there was no time for, what has none of the sizes, and what a profile cannot
  // hold.
  const std::vector<std::string>& omitted() const { return omitted_; }
  // Why there is no sample at all, and what would be right.
  std::string whyNothing() const;
  // Samples whose median is known less well than was asked for.
  std::size_t unsteady() const { return unsteady_; }
  // With --force: what was busy or impossible.
  const std::vector<std::string>& doubts() const { return doubts_; }

 private:
  using Add = std::function<void(const Point&)>;

  // What used the processors meanwhile, as a text; that time is lost. Empty: nothing, or with
  // --force, which remembers it as a doubt.
  std::string busyDuring(const std::function<void()>& work);
  // Returns when other programs leave the processors to the ranks.
  void waitUntilQuiet();
  // Measures until they did so meanwhile. `text` says what.
  void undisturbed(const std::string& text, const std::function<void()>& measure);
  // Throws NoProfile if too much time was lost to what is busy.
  void requirePatience(const std::string& busy) const;

  void measure(const Target& target, ProfileBuilder* profile);
  // `alone`: rank 0's pair, while the other ranks sleep.
  void measure(const Pairing& pairing, bool alone, ProfileBuilder* profile);
  void measure(const LayerKind& kind, ProfileBuilder* profile);
  // At once from rank 0's node to another; 0: the pairs are in nodes.
  int pairsBetweenNodes(const Pairing& pairing, bool alone) const;
  // One unit of `part`; adds its samples on rank 0, and returns them. `group`: which is held
  // against pairs; nullptr: it is one.
  Swept sweepUnit(std::size_t part, const Subject& subject, const std::string& text,
                  const GroupSize* group, const Add& add);

  // There was no time for it.
  void cut(const std::string& text);

  const FitOptions& options_;
  Team& team_;
  std::vector<int> nodeOfRank_;
  std::vector<moecclGridShape_t> shapes_;
  std::vector<Grid> grids_;
  Comm ownComm_;  // of this rank alone, as the grid
  Grid ownGrid_;  // for layers; nullptr: there are none
  std::vector<Pairing> pairings_;
  std::vector<Target> targets_;
  std::span<const LayerKind> layerKinds_;
  Budget budget_;
  Progress progress_;
  Processors processors_;
  Judgement judgement_;
  std::size_t pairsPart_, collectivesPart_, layersPart_;
  std::vector<std::string> omitted_;
  std::size_t unsteady_ = 0;
  bool outOfTime_ = false;
  double lost_ = 0;                // seconds, to what is busy
  std::vector<std::string> busy_;  // with --force
  std::vector<std::string> doubts_;
};

}  // namespace moeccl::perf
