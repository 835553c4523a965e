// Measures pairs, then collectives on groups and grids, then layers. Each gets its share of the
// budget; what was cut or left out is noted.
#include "perf/fit/benchmark_run.h"

#include <algorithm>

namespace moeccl::perf {
namespace {

constexpr double kPairsWeight = 0.1, kCollectivesWeight = 0.7, kLayersWeight = 0.2;

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
}

void BenchmarkRun::run(ProfileBuilder& profile) {
  ProfileBuilder* const mine = team_.job().rank() == 0 ? &profile : nullptr;
  team_.slowest({});
  for (const Pairing& pairing : pairings_)
    for (const bool alone : {true, false}) measure(pairing, alone, mine);
  for (const Target& target : targets_) measure(target, mine);
  for (const LayerKind& kind : layerKinds_) measure(kind, mine);
  progress_.clear();
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
  sweepUnit(pairsPart_, subject, textOf(pairing) + (alone ? ", one pair alone" : ""),
            [&](const Point& point) {
              profile->add("alltoall", point.candidate.algorithm, comm, alone, point.bytes,
                           point.seconds);
            });
  team_.setAsleep(false);
}

void BenchmarkRun::measure(const Target& target, ProfileBuilder* profile) {
  const moecclGrid_t grid = grids_[target.grids.front()].get();
  const moecclGridShape_t& shape = shapes_[target.grids.front()];
  const bool ofGrid = target.group == moecclGroupWorld;
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
  sweepUnit(collectivesPart_, subject, target.text, add);
}

void BenchmarkRun::measure(const LayerKind& kind, ProfileBuilder* profile) {
  const double began = team_.elapsed();
  const std::string text = textOf(kind);
  const LayersMeasured measured = measureLayers(
      team_, options_, kind, budget_.until(layersPart_, began),
      [&](std::int64_t tokens) {
        progress_.show(budget_, team_.elapsed(), text + ", " + std::to_string(tokens) + " tokens");
      },
      profile);
  unsteady_ += measured.unsteady;
  if (measured.cutAt > 0) cut(text + ": from " + std::to_string(measured.cutAt) + " tokens on");
  budget_.finishUnit(layersPart_, began, team_.elapsed());
}

void BenchmarkRun::sweepUnit(std::size_t part, const Subject& subject, const std::string& text,
                             const Add& add) {
  const double began = team_.elapsed();
  const Swept swept =
      sweep(team_, options_, subject, budget_.until(part, began), [&](std::size_t bytes) {
        progress_.show(budget_, team_.elapsed(), text + ", " + textOfBytes(bytes));
      });
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
}

void BenchmarkRun::cut(const std::string& text) {
  outOfTime_ = true;
  omitted_.push_back(text);
}

}  // namespace moeccl::perf
