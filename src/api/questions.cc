// Finds the cluster that a question is about, which is a communicator's or an imagined one. A grid
// has a model until what its calls are chosen by changes.
#include "src/api/questions.h"

#include <utility>

#include "src/api/profile_handle.h"

namespace moeccl {
LayerQuestions& questionsOf(moecclGrid_t grid) {
  moecclGrid& it = gridOf(grid);
  const HeldComm world = holdWorld(grid);
  communicatorOf(world);
  if (it.questions == nullptr) it.questions = std::make_shared<LayerQuestions>();
  const unsigned long number = world->model().number();
  if (it.questions->isFor(number)) return *it.questions;
  moecclCluster_t here = MOECCL_CLUSTER_INITIALIZER;
  here.grid = grid;
  const Cluster cluster = clusterOf(here);
  auto model = std::make_unique<LayerModel>(cluster);
  if (cluster.profile != nullptr) model->prepare();
  it.questions->setModel(std::move(model), number);
  return *it.questions;
}

std::vector<LayerModel::Candidate> candidatesOf(moecclGrid_t grid,
                                                const moecclMoeConfig_t& config) {
  const Subject subject = subjectOf(
      {config, config.training != 0 ? moecclPassBoth : moecclPassForward, moecclScheduleAuto},
      gridOf(grid).shape);
  return questionsOf(grid).model().candidates(subject.offered, subject.passes, subject.free);
}

HeldComm heldOf(const moecclCluster_t& cluster) {
  if (cluster.grid == nullptr) return hold(cluster.comm);
  gridOf(cluster.grid);
  return holdWorld(cluster.grid);
}

Cluster clusterOf(const moecclCluster_t& cluster) {
  const HeldComm held = heldOf(cluster);
  if (held.isNull()) {
    if (cluster.profile == nullptr) return imaginedCluster(cluster, nullptr);
    requireLive(HandleKind::profile, cluster.profile);
    return imaginedCluster(cluster, cluster.profile->profile);
  }
  const Communicator& communicator = communicatorOf(held);
  return {
      communicator.topology(),
      cluster.grid == nullptr ? moecclGridShape_t{1, 1, 1, moecclOrderEspEp} : cluster.grid->shape,
      communicator.settings().algorithms,
      held->model().profile(),
      held->model().ranksOnNode(),
      typicalOf(communicator),
      communicator.device() || communicator.settings().progressThread};
}

}  // namespace moeccl
