// Checks a caller's moecclCluster_t and turns it into ranks on nodes, typical links and switches.
// Errors name the field.
#include "src/model/cluster.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "src/base/error.h"
#include "src/base/text.h"

namespace moeccl {

namespace {

Typical typicalOf(const moecclCluster_t& cluster) {
  if (cluster.links < moecclLinksHost || cluster.links >= moecclNumLinks)
    throw Error(
        moecclInvalidArgument,
        stringf("cluster.links is %d; it must be moecclLinksHost (0), Nvlink (1) or Pcie (2)",
                static_cast<int>(cluster.links)));
  if (cluster.networkGbits < 0)
    throw Error(moecclInvalidArgument,
                stringf("cluster.networkGbits is %d; it must be 0, for what is typical, or more",
                        cluster.networkGbits));
  Typical typical = moeccl::typicalOf(cluster.links);
  if (cluster.networkGbits > 0) {
    Links& links = typical.links;
    const double factor = 8e-9 / cluster.networkGbits / links.betaUplink;
    links.betaUplink *= factor;
    links.betaBetween *= factor;
  }
  return typical;
}

Switches switchesOf(const moecclCluster_t& cluster) {
  const double times = cluster.oversubscription;
  if (cluster.nodesPerSwitch < 0)
    throw Error(moecclInvalidArgument,
                stringf("cluster.nodesPerSwitch is %d; it must be 0, for one switch, or more",
                        cluster.nodesPerSwitch));
  if (times != 0 && !(times >= 1 && std::isfinite(times)))
    throw Error(moecclInvalidArgument,
                stringf("cluster.oversubscription is %g; it must be at least 1, or 0, which is as "
                        "1",
                        times));
  if (times > 1 && cluster.nodesPerSwitch == 0)
    throw Error(moecclInvalidArgument,
                stringf("cluster.oversubscription is %g and nodesPerSwitch is 0; set how many "
                        "nodes hang on each leaf switch",
                        times));
  return {cluster.nodesPerSwitch, std::max(times, 1.0)};
}

}  // namespace

Cluster imaginedCluster(const moecclCluster_t& cluster, std::shared_ptr<const Profile> profile) {
  if (cluster.nNodes < 1)
    throw Error(moecclInvalidArgument,
                "cluster has neither grid nor comm; then nNodes must be above 0");
  if (cluster.ranksPerNode == nullptr)
    throw Error(moecclInvalidArgument, "cluster.ranksPerNode is NULL; pass [nNodes] numbers");
  constexpr long long kMostRanks = 1 << 16;
  long long ranks = 0;
  for (int node = 0; node < cluster.nNodes; ++node) {
    const int here = cluster.ranksPerNode[node];
    if (here < 1 || (ranks += here) > kMostRanks)
      throw Error(moecclInvalidArgument,
                  stringf("cluster.ranksPerNode[%d] is %d; each node has at least one rank, all "
                          "together at most %lld",
                          node, here, kMostRanks));
  }
  const std::span<const int> nodes(cluster.ranksPerNode, static_cast<std::size_t>(cluster.nNodes));
  return {Topology::uneven(nodes), cluster.shape,      {},    std::move(profile),
          std::ranges::max(nodes), typicalOf(cluster), false, switchesOf(cluster)};
}

void requireShape(const moecclGridShape_t& shape, int ranks) {
  if (shape.nMp >= 1 && shape.nEp >= 1 && shape.nEsp >= 1 &&
      static_cast<long long>(shape.nEp) * shape.nEsp == ranks && ranks % shape.nMp == 0 &&
      shape.order >= 0 && shape.order < moecclNumOrders)
    return;
  throw Error(
      moecclInvalidArgument,
      stringf("cluster.shape is {nMp %d, nEp %d, nEsp %d, order %d}; nEp * nEsp must be the "
              "number of ranks, %d, and nMp divide it",
              shape.nMp, shape.nEp, shape.nEsp, static_cast<int>(shape.order), ranks));
}

}  // namespace moeccl
