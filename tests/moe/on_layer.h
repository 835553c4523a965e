// A problem's layer on the ranks of a job, as most tests want it.
#pragma once

#include <functional>

#include "tests/moe/problem.h"

namespace moeccl::test {

// One of the ranks, and what it has of the layer.
struct LayerRank {
  moecclComm_t comm;
  int rank, batch;
  moecclGrid_t grid;
  moecclMoeLayer_t layer;
  moecclMoeShapes_t shapes;
  moe_reference::Shard& shard;    // the layer's weights
  moe_reference::Elements input;  // the batch's tokens
};
using LayerFunction = std::function<void(const LayerRank&)>;

// Makes a layer of that config and the solved one's weights, runs `function` on each rank, and
// destroys the layer. Throws on a rank where the layer has another schedule than the config asks
// for.
void onLayer(const Job& job, const Problem& problem, const Solved& solved,
             const moecclMoeConfig_t& config, const LayerFunction& function);

// By threads; the solved layer's config under that schedule.
void onLayer(const Problem& problem, const Solved& solved, moecclSchedule_t schedule,
             const LayerFunction& function);

}  // namespace moeccl::test
