// Makes grid and layer of a problem on every rank.
#include "tests/moe/on_layer.h"

namespace moeccl::test {

void onLayer(const Job& job, const Problem& problem, const Solved& solved,
             const moecclMoeConfig_t& config, const LayerFunction& function) {
  runJob(job, [&](moecclComm_t comm, int rank) {
    moecclGrid_t grid = makeGrid(comm, problem.grid);
    moecclMoeLayer_t layer = nullptr;
    check(moecclMoeLayerCreate(grid, &config, &layer));
    moecclMoeShapes_t shapes = MOECCL_MOE_SHAPES_INITIALIZER;
    check(moecclMoeLayerGetShapes(layer, &shapes));
    checkThat(config.schedule == moecclScheduleAuto || shapes.schedule == config.schedule,
              "another schedule than was asked for");
    moe_reference::Shard shard = moe_reference::shardOf(solved.layer, shapes);
    check(moecclMoeLayerSetWeights(layer, &shard.weights));
    const int batch = rank / problem.grid.nMp;
    function({comm, rank, batch, grid, layer, shapes, shard,
              moe_reference::encode(problem.datatype, solved.inputs[batch])});
    check(moecclMoeLayerDestroy(layer));
    check(moecclGridDestroy(grid));
  });
}

void onLayer(const Problem& problem, const Solved& solved, moecclSchedule_t schedule,
             const LayerFunction& function) {
  moecclMoeConfig_t config = solved.layer.config;
  config.schedule = schedule;
  onLayer(jobOf(problem), problem, solved, config, function);
}

}  // namespace moeccl::test
