// Draws grids, sizes and routings.
#include "tests/schedules/layers.h"

#include <algorithm>
#include <numeric>

namespace moeccl::schedules {

std::vector<Grid> gridsUpTo(int most) {
  std::vector<Grid> grids;
  for (int ranks = 1; ranks <= most; ++ranks)
    for (int ep = 1; ep <= ranks; ++ep)
      for (int mp = 1; mp <= ranks; ++mp) {
        if (ranks % ep != 0 || ranks % mp != 0) continue;
        for (const bool espConsecutive : {true, false})
          grids.push_back({mp, ep, ranks / ep, espConsecutive});
      }
  return grids;
}

bool applies(const Schedule& schedule, const Grid& grid) {
  return !schedule.needs.expertsInMp || grid.mp == grid.ranks();
}

RoutedLayer randomLayer(const Schedule& schedule, const Grid& grid, std::mt19937& random) {
  const auto any = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  RoutedLayer layer;
  layer.grid = grid;
  layer.localExperts = any(1, 3);
  layer.choices = any(1, std::min(3, layer.experts()));
  layer.tokens = any(0, 3) == 0 ? any(0, 2) : any(1, 5 * grid.mp);
  layer.chunks = schedule.chunks;
  layer.groups = any(1, 3);
  if (schedule.needs.wholeGroups) layer.groups *= grid.mp * schedule.chunks;
  if (schedule.dropless) layer.groups = schedule.chunks == 1 ? 1 : grid.mp * schedule.chunks;
  const int unit = std::lcm(layer.groups, grid.mp);
  const int padded = (layer.tokens + unit - 1) / unit * unit;
  layer.groupTokens = padded / layer.groups;
  // Places of all groups together are cut by the MP group.
  const int step = unit / layer.groups;
  layer.groupSlots = step * any(1, std::max(1, layer.groupTokens / step));
  layer.seed = random();
  layer.gateGradients = any(0, 1) == 1;

  const double hot = any(0, 2) / 2.0;  // how much more the first experts are chosen
  std::vector<int> experts(static_cast<std::size_t>(layer.experts()));
  for (int batch = 0; batch < grid.mpGroups(); ++batch) {
    std::vector<int> used(static_cast<std::size_t>(layer.groups * layer.experts()));
    for (int token = 0; token < layer.tokens; ++token) {
      std::iota(experts.begin(), experts.end(), 0);
      std::ranges::shuffle(experts, random);
      if (any(0, 99) < 100 * hot) std::ranges::sort(experts);
      for (int c = 0; c < layer.choices; ++c) {
        const int expert = experts[static_cast<std::size_t>(c)];
        const int group = layer.groupTokens == 0 ? 0 : token / layer.groupTokens;
        int& slot = used[static_cast<std::size_t>(group * layer.experts() + expert)];
        const bool kept = schedule.dropless || slot < layer.groupSlots;
        layer.routing.push_back({expert, kept ? group * layer.groupSlots + slot++ : -1});
      }
    }
  }
  return layer;
}

}  // namespace moeccl::schedules
