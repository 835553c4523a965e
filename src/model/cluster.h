// The ranks and links that a question is about.
#pragma once

#include <array>
#include <memory>

#include "algorithms/grid.h"
#include "algorithms/registry.h"
#include "algorithms/topology.h"
#include "moeccl/model.h"
#include "src/base/structs.h"
#include "src/model/leaves.h"
#include "src/model/links.h"
#include "src/model/profile.h"

namespace moeccl {

using FixedAlgorithms = std::array<AlgorithmChoice, kCollectives>;  // no algorithm: free

inline constexpr StructKind<moecclCluster_t> kCluster = {
    "cluster", "MOECCL_CLUSTER_INITIALIZER", MOECCL_CLUSTER_MAGIC,
    MOECCL_END_OF(moecclCluster_t, profile), MOECCL_END_OF(moecclCluster_t, oversubscription)};

struct Cluster {
  Topology topology;
  moecclGridShape_t shape;
  FixedAlgorithms fixed;
  std::shared_ptr<const Profile> profile;
  int ranksOnNode;  // of the job on its largest node, of which these may be a part
  Typical typical = {};
  bool background = false;  // exchanges go on while ranks compute, as they do on GPUs
  Switches switches = {};
};

// One that does not exist. Throws Error for a field that is not as moecclCluster_t says.
Cluster imaginedCluster(const moecclCluster_t& cluster, std::shared_ptr<const Profile> profile);

// Throws Error unless a grid of `ranks` ranks can have that shape.
void requireShape(const moecclGridShape_t& shape, int ranks);

inline Grid asGrid(const moecclGridShape_t& shape) {
  return {shape.nMp, shape.nEp, shape.nEsp, shape.order == moecclOrderEspEp};
}

}  // namespace moeccl
