#include "perf/fit/campaign.h"

#include <algorithm>

namespace moeccl::perf {
namespace {

constexpr double kCollectivesWeight = 0.8, kLayersWeight = 0.2;

std::vector<int> nodesOfRanks(const Job& job) {
  std::vector<int> nodes(static_cast<std::size_t>(job.ranks()));
  for (int rank = 0; rank < job.ranks(); ++rank)
    require(moecclCommNodeOfRank(job.comm(), rank, &nodes[static_cast<std::size_t>(rank)]),
            "ask for a node", job.comm());
  return nodes;
}

}  // namespace

Campaign::Campaign(const FitOptions& options, Team& team)
    : options_(options),
      team_(team),
      nodeOfRank_(nodesOfRanks(team.job())),
      shapes_(gridsFor(options, team.job().ranks())),
      targets_(targetsOf(shapes_, nodeOfRank_)),
      budget_(options.budgetSeconds),
      progress_(team.job().rank() == 0),
      collectivesPart_(budget_.addPart(kCollectivesWeight, targets_.size())),
      layersPart_(budget_.addPart(kLayersWeight, layerKinds().size())),
      omitted_(unlikeGroups(shapes_, nodeOfRank_)) {
  const moecclComm_t world = team.job().comm();
  for (const moecclGridShape_t& shape : shapes_) {
    moecclGrid_t grid = nullptr;
    require(moecclGridCreate(world, shape, &grid), "make a grid", world);
    grids_.emplace_back(grid);
  }
}

void Campaign::run(Profile& profile) {
  Profile* const mine = team_.job().rank() == 0 ? &profile : nullptr;
  team_.slowest({});
  for (const Target& target : targets_) {
    const double began = team_.elapsed();
    measure(target, mine);
    budget_.finishUnit(collectivesPart_, began, team_.elapsed());
  }
  for (const LayerKind& kind : layerKinds()) {
    const double began = team_.elapsed();
    const LayersMeasured measured = measureLayers(
        team_, options_, kind, budget_.until(layersPart_, began),
        [&](std::int64_t tokens) {
          progress_.show(budget_, team_.elapsed(),
                         textOf(kind) + ", " + std::to_string(tokens) + " tokens");
        },
        mine);
    unsteady_ += measured.unsteady;
    if (measured.cutAt > 0)
      omitted_.push_back(textOf(kind) + ": from " + std::to_string(measured.cutAt) + " tokens on");
    budget_.finishUnit(layersPart_, began, team_.elapsed());
  }
  progress_.clear();
}

void Campaign::measure(const Target& target, Profile* profile) {
  const moecclGrid_t grid = grids_[target.grids.front()].get();
  const moecclGridShape_t& shape = shapes_[target.grids.front()];
  const bool ofGrid = target.group == moecclGroupWorld;
  const int rank = team_.job().rank(), ranks = team_.job().ranks();
  moecclComm_t comm = team_.job().comm();
  if (!ofGrid) require(moecclGridGetComm(grid, target.group, &comm), "ask for a group", comm);

  const auto patternOfRank = [&](int member) {
    return patternOf(membersOf(shape, target.group, member, ranks), nodeOfRank_);
  };
  World world{ranks, shape, 1};
  if (!ofGrid) require(moecclCommCount(comm, &world.ranks), "count the ranks", comm);
  moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
  if (ofGrid)
    cluster.grid = grid;
  else
    cluster.comm = comm;
  const Subject subject{target.collective, world, comm, patternOfRank(rank) == patternOfRank(0),
                        algorithmsFor(team_.job(), options_, *target.collective, &cluster)};

  const Swept swept =
      sweep(team_, options_, subject, budget_.until(collectivesPart_, team_.elapsed()),
            [&](std::size_t bytes) {
              progress_.show(budget_, team_.elapsed(), target.text + ", " + textOfBytes(bytes));
            });
  const std::string name(target.collective->name);
  for (const Point& point : swept.points) {
    unsteady_ += !point.steady;
    if (profile == nullptr) continue;
    if (!ofGrid) profile->add(name, point.algorithm, comm, point.bytes, point.seconds);
    // Whichever grids are alike to this collective, a profile holds them apart.
    if (ofGrid)
      for (const std::size_t alike : target.grids)
        profile->add(name, point.algorithm, grids_[alike].get(), point.bytes, point.seconds);
  }
  noteCut(target.text, swept.cutAt, !swept.points.empty());
}

void Campaign::noteCut(const std::string& what, std::size_t bytes, bool any) {
  if (bytes == 0) return;
  omitted_.push_back(any ? what + ": from " + textOfBytes(bytes) + " on" : what + ": all of it");
}

}  // namespace moeccl::perf
