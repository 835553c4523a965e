// The clusters and grids that questions are about.
#pragma once

#include <vector>

#include "src/api/handles.h"
#include "src/model/layer_questions.h"

namespace moeccl {

// The questions of a grid, with a model of what its calls are chosen by now. Throws Error.
LayerQuestions& questionsOf(moecclGrid_t grid);
// The candidates that a layer on the grid may choose from by itself. Throws Error.
std::vector<LayerModel::Candidate> candidatesOf(moecclGrid_t grid, const moecclMoeConfig_t& config);

// The communicator that a question is about; null where the cluster is imagined.
HeldComm heldOf(const moecclCluster_t& cluster);
// The cluster, there or imagined. Throws Error.
Cluster clusterOf(const moecclCluster_t& cluster);

}  // namespace moeccl
