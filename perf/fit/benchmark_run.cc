// Measures pairs, then collectives on groups and grids, then layers. Each gets its share of the
// budget; what was cut or left out is noted. What was measured beside other programs, or is faster
// than pairs allow, is measured again.
#include "perf/fit/benchmark_run.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace moeccl::perf {
namespace {

constexpr double kPairsWeight = 0.1, kCollectivesWeight = 0.7, kLayersWeight = 0.2;
// Seconds in which ranks sleep to see what others do, and their share of the budget.
constexpr double kShortestLook = 0.1, kLongestLook = 0.5, kLookShare = 1.0 / 40;
// The part of the budget that may be lost to other programs.
constexpr double kPatience = 0.5;

std::vector<int> nodesOfRanks(const Job& job) {
  std::vector<int> nodes(static_cast<std::size_t>(job.ranks()));
  for (int rank = 0; rank < job.ranks(); ++rank)
    require(moecclCommNodeOfRank(job.comm(), rank, &nodes[static_cast<std::size_t>(rank)]),
            "ask for a node", job.comm());
  return nodes;
}

std::string textOf(const Pairing& pairing) { return "alltoall of " + pairing.text + " ranks"; }

// Pairs that are also groups of a grid are measured as pairs.
std::vector<Target> targetsBeside(const std::vector<Pairing>& pairings,
                                  std::vector<Target> targets) {
  std::erase_if(targets, [&](const Target& target) {
    return std::ranges::any_of(
        pairings, [&](const Pairing& pairing) { return target.text == textOf(pairing); });
  });
  return targets;
}

std::vector<Target> askedFor(const FitOptions& options, std::vector<Target> targets) {
  if (options.collectives.empty()) return targets;
  for (Target& target : targets)
    std::erase_if(target.collectives, [&](const MeasuredCollective* collective) {
      return std::ranges::find(options.collectives, collective->name) == options.collectives.end();
    });
  std::erase_if(targets, [](const Target& target) { return target.collectives.empty(); });
  return targets;
}

// Whether one of `known` is measured instead.
bool hasNameOf(const std::vector<Candidate>& known, const Candidate& other,
               const moecclGridShape_t& shape) {
  return std::ranges::any_of(known, [&](const Candidate& one) {
    return std::ranges::any_of(
        namesOf(one.collective->name, one.algorithm, shape, shape), [&](const SampleName& name) {
          return name.collective == other.collective->name && name.algorithm == other.algorithm;
        });
  });
}

}  // namespace

BenchmarkRun::BenchmarkRun(const FitOptions& options, Team& team)
    : options_(options),
      team_(team),
      nodeOfRank_(nodesOfRanks(team.job())),
      shapes_(gridsFor(options, team.job().ranks())),
      pairings_(pairingsOf(nodeOfRank_)),
      targets_(askedFor(options, targetsBeside(pairings_, targetsOf(shapes_, nodeOfRank_)))),
      layerKinds_(options.collectives.empty() ? layerKinds() : std::span<const LayerKind>()),
      budget_(options.budgetSeconds),
      progress_(team.job().rank() == 0),
      processors_(team.job()),
      judgement_(options.force),
      pairsPart_(budget_.addPart(kPairsWeight, 2 * pairings_.size())),
      collectivesPart_(budget_.addPart(kCollectivesWeight, targets_.size())),
      layersPart_(budget_.addPart(kLayersWeight, layerKinds_.size())),
      omitted_(unlikeGroups(shapes_, nodeOfRank_)) {
  const moecclComm_t world = team.job().comm();
  for (const moecclGridShape_t& shape : shapes_) {
    moecclGrid_t grid = nullptr;
    require(moecclGridCreate(world, shape, &grid), "make a grid", world);
    grids_.emplace_back(grid);
  }
  if (layerKinds_.empty()) return;
  moecclComm_t alone = nullptr;
  require(moecclCommSplit(world, team.job().rank(), 0, &alone, nullptr), "split", world);
  ownComm_.reset(alone);
  moecclGrid_t grid = nullptr;
  require(moecclGridCreate(alone, {1, 1, 1, moecclOrderEspEp}, &grid), "make a grid", alone);
  ownGrid_.reset(grid);
}

void BenchmarkRun::run(ProfileBuilder& profile) {
  ProfileBuilder* const mine = team_.job().rank() == 0 ? &profile : nullptr;
  waitUntilQuiet();
  for (const Pairing& pairing : pairings_)
    for (const bool alone : {true, false}) measure(pairing, alone, mine);
  for (const Target& target : targets_) measure(target, mine);
  for (const LayerKind& kind : layerKinds_) measure(kind, mine);
  progress_.clear();
  std::vector<std::string>& told = options_.force ? doubts_ : omitted_;
  told.insert(told.end(), judgement_.impossible().begin(), judgement_.impossible().end());
  if (!busy_.empty())
    doubts_.insert(doubts_.begin(), busy_[0] + ", or so, in " + std::to_string(busy_.size()) +
                                        " of " + std::to_string(budget_.units() + 1) + " looks");
  judgement_.requirePossible();
}

std::string BenchmarkRun::busyDuring(const std::function<void()>& work) {
  const double began = team_.elapsed();
  processors_.begin();
  work();
  std::string busy = processors_.end();
  team_.slowest({});
  if (busy.empty()) return busy;
  if (options_.force) {
    busy_.push_back(busy);
    return "";
  }
  lost_ += team_.elapsed() - began;
  return busy;
}

void BenchmarkRun::waitUntilQuiet() {
  const std::chrono::duration<double> look(
      std::clamp(options_.budgetSeconds * kLookShare, kShortestLook, kLongestLook));
  for (bool told = false;; told = true) {
    team_.slowest({});
    const std::string busy = busyDuring([&] { std::this_thread::sleep_for(look); });
    if (busy.empty()) return;
    if (!told)
      progress_.say("busy: " + busy + "; waiting for at most " +
                    textOfSeconds(std::max(0.0, kPatience * options_.budgetSeconds - lost_)) +
                    " min");
    requirePatience(busy);
  }
}

void BenchmarkRun::undisturbed(const std::string& text, const std::function<void()>& measure) {
  for (;;) {
    const std::string busy = busyDuring(measure);
    if (busy.empty()) return;
    requirePatience(busy);
    progress_.say(text + " is measured again: " + busy);
    waitUntilQuiet();
  }
}

void BenchmarkRun::requirePatience(const std::string& busy) const {
  if (lost_ <= kPatience * options_.budgetSeconds) return;
  throw NoProfile(busy +
                  ", and half of --budget was lost to that; end those programs (`top` lists " +
                  "them), or write a profile all the same by --force");
}

std::string BenchmarkRun::whyNothing() const {
  if (budget_.units() == 0)
    return "one rank alone has no --collectives to measure; start more ranks, or leave "
           "--collectives out";
  if (outOfTime_) return "--budget was over before the first size; give more seconds";
  return "no size from --min-bytes to --max-bytes has 4 bytes for each rank of a group and a "
         "receive buffer of at most 256 MiB; give others";
}

void BenchmarkRun::measure(const Pairing& pairing, bool alone, ProfileBuilder* profile) {
  const Job& job = team_.job();
  const int rank = job.rank();
  const int partner = pairing.partner[static_cast<std::size_t>(rank)];
  const bool takesPart = partner >= 0 && (!alone || std::min(rank, partner) == 0);
  moecclComm_t comm = nullptr;
  require(moecclCommSplit(job.comm(), takesPart ? std::min(rank, partner) : MOECCL_SPLIT_NOCOLOR,
                          rank, &comm, nullptr),
          "make pairs", job.comm());
  const Comm pair(comm);
  const MeasuredCollective& exchange = collectiveNamed("alltoall");
  moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
  cluster.comm = comm;
  const Subject subject{candidatesFor(job, options_, exchange, takesPart ? &cluster : nullptr),
                        {.ranks = 2},
                        comm,
                        takesPart};
  team_.setAsleep(!takesPart);
  const Swept swept =
      sweepUnit(pairsPart_, subject, textOf(pairing) + (alone ? ", one pair alone" : ""), nullptr,
                [&](const Point& point) {
                  profile->add("alltoall", point.candidate.algorithm, comm, alone, point.bytes,
                               point.seconds);
                });
  team_.setAsleep(false);
  judgement_.addPairs(pairsBetweenNodes(pairing, alone), swept.points);
}

int BenchmarkRun::pairsBetweenNodes(const Pairing& pairing, bool alone) const {
  int pairs = 0;
  for (std::size_t rank = 0; rank < pairing.partner.size(); ++rank) {
    const int partner = pairing.partner[rank];
    if (partner >= 0 && nodeOfRank_[rank] == nodeOfRank_[0] &&
        nodeOfRank_[static_cast<std::size_t>(partner)] != nodeOfRank_[0])
      ++pairs;
  }
  return alone ? std::min(pairs, 1) : pairs;
}

void BenchmarkRun::measure(const Target& target, ProfileBuilder* profile) {
  const moecclGrid_t grid = grids_[target.grids.front()].get();
  const moecclGridShape_t& shape = shapes_[target.grids.front()];
  const bool ofGrid = target.collectives.front()->usesGrid;
  const int rank = team_.job().rank(), ranks = team_.job().ranks();
  const auto patternOfRank = [&](int member) {
    return patternOf(membersOf(shape, target.group, member, ranks), nodeOfRank_);
  };

  moecclComm_t comm = team_.job().comm();
  World world{ranks, shape, 1};
  moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
  Add add;
  if (ofGrid) {
    cluster.grid = grid;
    // A profile holds grids apart, also where they are alike to this collective, and collectives,
    // also where they have the same plan.
    add = [&](const Point& point) {
      for (const std::size_t alike : target.grids)
        for (const SampleName& name : namesOf(point.candidate.collective->name,
                                              point.candidate.algorithm, shape, shapes_[alike]))
          profile->add(std::string(name.collective), name.algorithm, grids_[alike].get(),
                       point.bytes * static_cast<std::size_t>(name.times), point.seconds);
    };
  } else {
    if (target.group != moecclGroupWorld)
      require(moecclGridGetComm(grid, target.group, &comm), "ask for a group", comm);
    require(moecclCommCount(comm, &world.ranks), "count the ranks", comm);
    cluster.comm = comm;
    add = [&](const Point& point) {
      profile->add(std::string(point.candidate.collective->name), point.candidate.algorithm, comm,
                   false, point.bytes, point.seconds);
    };
  }
  // On a GPU a call between two barriers would be that of its launch, too, which in a layer is
  // hidden.
  const Calls calls = options_.memory == moecclMemoryHost ? Calls::apart : Calls::inARow;
  Subject subject{{}, world, comm, patternOfRank(rank) == patternOfRank(0), calls};
  // Groups that lie otherwise are offered the same, but other algorithms may be one there.
  const moecclCluster_t* const whose = subject.counts ? &cluster : nullptr;
  for (const MeasuredCollective* collective : target.collectives)
    for (const Candidate& one : candidatesFor(team_.job(), options_, *collective, whose))
      if (!hasNameOf(subject.candidates, one, shape)) subject.candidates.push_back(one);
  const std::vector<int> members = membersOf(shape, target.group, 0, ranks);
  const GroupSize group{static_cast<int>(members.size()),
                        static_cast<int>(std::ranges::count_if(members, [&](int member) {
                          return nodeOfRank_[static_cast<std::size_t>(member)] == nodeOfRank_[0];
                        }))};
  sweepUnit(collectivesPart_, subject, target.text, &group, add);
}

void BenchmarkRun::measure(const LayerKind& kind, ProfileBuilder* profile) {
  const double began = team_.elapsed();
  const std::string text = textOf(kind);
  LayersMeasured measured;
  undisturbed(text, [&] {
    measured = measureLayers(team_, options_, kind, ownGrid_.get(),
                             budget_.until(layersPart_, team_.elapsed()), [&](std::int64_t tokens) {
                               progress_.show(budget_, team_.elapsed(),
                                              text + ", " + std::to_string(tokens) + " tokens");
                             });
  });
  if (profile != nullptr)
    for (const LayerPoint& point : measured.points)
      profile->add(ownGrid_.get(), point.config, point.pass, point.seconds);
  unsteady_ += measured.unsteady;
  if (measured.cutAt > 0) cut(text + ": from " + std::to_string(measured.cutAt) + " tokens on");
  budget_.finishUnit(layersPart_, began, team_.elapsed());
}

Swept BenchmarkRun::sweepUnit(std::size_t part, const Subject& subject, const std::string& text,
                              const GroupSize* group, const Add& add) {
  const double began = team_.elapsed();
  const auto sweepOnce = [&] {
    Swept measured;
    undisturbed(text, [&] {
      measured = sweep(team_, options_, subject, budget_.until(part, team_.elapsed()),
                       [&](std::size_t bytes) {
                         progress_.show(budget_, team_.elapsed(), text + ", " + textOfBytes(bytes));
                       });
    });
    return measured;
  };
  const auto again = [&](const std::string& why) {
    if (team_.elapsed() >= options_.budgetSeconds) return false;
    progress_.say(text + " is measured again, as this cannot be true: " + why);
    return true;
  };
  Swept swept = judgement_.judge(text, group, sweepOnce, again);
  for (const Point& point : swept.points) {
    unsteady_ += !point.steady;
    if (team_.job().rank() == 0) add(point);
  }
  if (swept.cutAt > 0)
    cut(text +
        (swept.points.empty() ? ": all of it" : ": from " + textOfBytes(swept.cutAt) + " on"));
  else if (swept.points.empty() && !subject.candidates.empty())
    omitted_.push_back(text + ": none of the sizes can be sent");
  budget_.finishUnit(part, began, team_.elapsed());
  return swept;
}

void BenchmarkRun::cut(const std::string& text) {
  outOfTime_ = true;
  omitted_.push_back(text);
}

}  // namespace moeccl::perf
