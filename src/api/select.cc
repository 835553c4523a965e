// Questions of users: which algorithm.
#include <optional>

#include "algorithms/choice.h"
#include "src/api/arguments.h"
#include "src/api/choices.h"
#include "src/api/profile_handle.h"
#include "src/base/text.h"
#include "src/model/alternatives.h"

namespace moeccl {
namespace {

std::shared_ptr<const Profile> profileIn(const moecclCluster_t& cluster) {
  if (cluster.profile == nullptr) return nullptr;
  requireLive(HandleKind::profile, cluster.profile);
  return cluster.profile->profile;
}

// Null: the cluster is imagined.
HeldComm heldOf(const moecclCluster_t& cluster) {
  if (cluster.grid == nullptr) return hold(cluster.comm);
  gridOf(cluster.grid);
  return holdWorld(cluster.grid);
}

Cluster clusterOf(const moecclCluster_t& cluster) {
  const auto state = heldOf(cluster);
  if (state.isNull()) return imaginedCluster(cluster, profileIn(cluster));
  const Communicator& communicator = communicatorOf(state);
  return {
      communicator.topology(),
      cluster.grid == nullptr ? moecclGridShape_t{1, 1, 1, moecclOrderEspEp} : cluster.grid->shape,
      communicator.settings().algorithms,
      state->model->profile(),
      state->model->ranksOnNode(),
      typicalOf(communicator)};
}

}  // namespace
}  // namespace moeccl

using moeccl::boundary;
using moeccl::Error;
using moeccl::require;

moecclResult_t moecclSelectAlgorithm(const moecclCluster_t* cluster, const char* collective,
                                     size_t bytes, int nExpertsPerRank,
                                     moecclAlgorithmChoices_t* choices) {
  return boundary("moecclSelectAlgorithm", nullptr, [&] {
    const moecclCluster_t theirs = moeccl::readStruct(moeccl::kCluster, cluster);
    require(collective != nullptr, "collective is NULL; it must name a collective");
    require(choices != nullptr, "choices is NULL; pass where to store the choices");
    const moeccl::Collective which = moeccl::collectiveOf(collective);
    const moeccl::Cluster ranks = moeccl::clusterOf(theirs);
    moeccl::AlgorithmChoice given = ranks.fixed[static_cast<std::size_t>(which)];
    if (moeccl::needsGrid(which)) {
      require(theirs.comm == nullptr, "cluster.comm has no grid, and the collective needs one");
      moeccl::requireShape(ranks.shape, ranks.topology.ranks());
      if (nExpertsPerRank < 1)
        throw Error(
            moecclInvalidArgument,
            moeccl::stringf("nExpertsPerRank is %d; it must be at least 1", nExpertsPerRank));
      given.parameters.grid = moeccl::asGrid(ranks.shape);
      given.parameters.experts = nExpertsPerRank;
    }
    // A communicator's own model remembers the candidates and their prices.
    const auto state = moeccl::heldOf(theirs);
    std::optional<moeccl::CostModel> imagined;
    if (state.isNull())
      imagined.emplace(ranks.topology, ranks.profile, ranks.ranksOnNode, ranks.typical,
                       leavesOfAll(ranks.switches, ranks.topology));
    moeccl::CostModel& model = state.isNull() ? *imagined : *state->model;
    auto found = std::make_unique<moecclAlgorithmChoices>();
    for (const auto& estimate : model.estimates(which, given, static_cast<double>(bytes))) {
      if (!state.isNull() && !moeccl::communicatorOf(state).serves(estimate.choice)) continue;
      moecclAlgorithmChoice_t choice = MOECCL_ALGORITHM_CHOICE_INITIALIZER;
      choice.measured = estimate.measured;
      choice.seconds = estimate.seconds;
      const moeccl::Line line = model.line(which, given, estimate.choice);
      choice.alpha = line.alpha;
      choice.beta = line.beta;
      choice.digest = model.digest(which, given, estimate.choice);
      found->all.push_back({choice, textOf(estimate.choice)});
    }
    *choices = found.release();
  });
}
