// Lists all grids on which a layer's experts and hidden values can be divided, and says which of a
// grid's groups lie within nodes.
#include "perf/plan/placement.h"

#include <numeric>
#include <stdexcept>

#include "perf/common/collectives.h"

namespace moeccl::perf::plan {

std::vector<moecclGridShape_t> placementsOf(const PredictOptions& options) {
  const int ranks = std::accumulate(options.ranksPerNode.begin(), options.ranksPerNode.end(), 0);
  const moecclMoeConfig_t& layer = options.layer;
  std::vector<moecclGridShape_t> placements;
  for (int nEsp = 1; nEsp <= ranks; ++nEsp) {
    const int nEp = ranks / nEsp;
    if (ranks % nEsp != 0 || layer.experts % nEp != 0 || layer.hidden % nEsp != 0) continue;
    for (const moecclGridOrder_t order : {moecclOrderEspEp, moecclOrderEpEsp}) {
      if (order == moecclOrderEpEsp && (nEp == 1 || nEsp == 1)) continue;
      for (int nMp = 1; nMp <= ranks; ++nMp)
        if (ranks % nMp == 0 && (options.nMp == 0 || nMp == options.nMp))
          placements.push_back({nMp, nEp, nEsp, order});
    }
  }
  if (placements.empty())
    throw std::runtime_error(
        "--layer: no N_EP x N_ESP = " + std::to_string(ranks) +
        " ranks has an N_EP that divides experts=" + std::to_string(layer.experts) +
        " and an N_ESP that divides hidden=" + std::to_string(layer.hidden));
  return placements;
}

std::string groupsInNodes(const moecclGridShape_t& shape, const std::vector<int>& ranksPerNode) {
  std::vector<int> nodeOfRank;
  for (std::size_t node = 0; node < ranksPerNode.size(); ++node)
    nodeOfRank.insert(nodeOfRank.end(), static_cast<std::size_t>(ranksPerNode[node]),
                      static_cast<int>(node));
  const World world{static_cast<int>(nodeOfRank.size()), shape, 1};
  const auto inNodes = [&](auto groupOf) {
    std::vector<int> node(nodeOfRank.size(), -1);  // by group
    for (int rank = 0; rank < world.ranks; ++rank) {
      int& its = node[static_cast<std::size_t>(groupOf(rank))];
      const int here = nodeOfRank[static_cast<std::size_t>(rank)];
      if (its >= 0 && its != here) return false;
      its = here;
    }
    return true;
  };
  std::string text;
  const auto add = [&](const char* name, int size, bool fits) {
    if (size <= 1 || !fits) return;
    if (!text.empty()) text += ' ';
    text += name;
  };
  add("MP", shape.nMp, inNodes([&](int rank) { return rank / shape.nMp; }));
  add("EP", shape.nEp, inNodes([&](int rank) { return world.shardOf(rank); }));
  add("ESP", shape.nEsp, inNodes([&](int rank) { return world.positionOf(rank); }));
  return text.empty() ? "-" : text;
}

}  // namespace moeccl::perf::plan
