// Asks the library what layers exchange on each grid, and keeps one target for each collective on
// groups that look alike.
#include "perf/fit/targets.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>

#include "perf/common/choices.h"
#include "perf/fit/options.h"

namespace moeccl::perf {
namespace {

struct Use {
  std::string collective;
  moecclGroup_t group;
  auto operator<=>(const Use&) const = default;
};

// The collectives that layers call on a grid under every schedule, with capacity and without.
std::set<Use> usesOf(const moecclGridShape_t& shape) {
  const int ranks = shape.nEp * shape.nEsp;
  moecclCluster_t cluster = MOECCL_CLUSTER_INITIALIZER;
  cluster.nNodes = 1;
  cluster.ranksPerNode = &ranks;
  cluster.shape = shape;
  moecclMoeConfig_t layer = MOECCL_MOE_CONFIG_INITIALIZER;
  layer.tokens = layer.embedding = layer.topK = layer.training = layer.residual = 1;
  layer.hidden = shape.nEsp;
  layer.experts = shape.nEp;
  moecclQuery_t query = MOECCL_QUERY_INITIALIZER;
  query.cluster = &cluster;
  query.layer = &layer;
  query.pass = moecclPassBoth;
  std::set<Use> uses;
  for (layer.dropless = 0; layer.dropless <= 1; ++layer.dropless) {
    layer.capacityFactor = 1 - layer.dropless;
    layer.tokenRouting = -layer.dropless;
    std::string refused;  // by MOECCL_SCHEDULE
    const Choices choices(query, &refused);
    for (int i = 0; i < choices.count(); ++i)
      for (const moecclChoice_t& exchange : choices.exchanges(i))
        uses.insert({exchange.collective, exchange.group});
  }
  return uses;
}

// splitdispatch is dispatch of the rank's share; without MP, SAA gathers nothing.
constexpr std::string_view kDispatch = "dispatch", kCombine = "combine",
                           kCombineAllGather = "combineallgather", kSplitDispatch = "splitdispatch";
constexpr int kAnyMp = 0;
// Algorithms of combine and dispatch; where ESP groups have one rank nothing is sent twice anyway.
constexpr std::string_view kOnce = "dedup", kTwice = "flat";
constexpr std::string_view kSaaAtOnce = "sequential";

std::vector<std::string> sameAlgorithms(std::string_view collective, const std::string& algorithm,
                                        const moecclGridShape_t& shape) {
  const bool hasBoth = collective == kDispatch || collective == kCombine;
  if (hasBoth && shape.nEsp == 1 && (algorithm == kOnce || algorithm == kTwice))
    return {std::string(kOnce), std::string(kTwice)};
  return {algorithm};
}

}  // namespace

const MeasuredCollective& collectiveNamed(std::string_view name) {
  const auto all = collectives();
  const auto found = std::ranges::find(all, name, &MeasuredCollective::name);
  if (found == all.end()) throw std::logic_error("no collective " + std::string(name));
  return *found;
}

std::vector<int> membersOf(const moecclGridShape_t& shape, moecclGroup_t group, int rank,
                           int ranks) {
  const World world{ranks, shape, 1};
  std::vector<int> members;
  for (int other = 0; other < ranks; ++other) {
    const bool together =
        group == moecclGroupWorld ||
        (group == moecclGroupMp && other / shape.nMp == rank / shape.nMp) ||
        (group == moecclGroupEp && world.shardOf(other) == world.shardOf(rank)) ||
        (group == moecclGroupEsp && world.positionOf(other) == world.positionOf(rank));
    if (together) members.push_back(other);
  }
  return members;
}

std::vector<int> patternOf(std::span<const int> members, std::span<const int> nodeOfRank) {
  std::map<int, int> numbers;
  std::vector<int> pattern;
  for (const int member : members) {
    const int next = static_cast<int>(numbers.size());
    pattern.push_back(
        numbers.try_emplace(nodeOfRank[static_cast<std::size_t>(member)], next).first->second);
  }
  return pattern;
}

std::string textOfPattern(std::span<const int> pattern) {
  std::map<int, int> ranksOnNode;
  for (const int node : pattern) ++ranksOnNode[node];
  std::map<int, int, std::greater<>> nodesOfSize;
  for (const auto& [node, ranks] : ranksOnNode) ++nodesOfSize[ranks];
  std::string text;
  for (const auto& [ranks, nodes] : nodesOfSize) {
    if (!text.empty()) text += '+';
    text += std::to_string(nodes) + 'x' + std::to_string(ranks);
  }
  return text;
}

std::vector<std::string> measurableCollectives() {
  std::set<std::string> names;
  for (const Use& use : usesOf({2, 2, 2, moecclOrderEspEp}))
    if (use.collective != kSplitDispatch) names.insert(use.collective);
  return {names.begin(), names.end()};
}

std::vector<Target> targetsOf(std::span<const moecclGridShape_t> grids,
                              std::span<const int> nodeOfRank) {
  const int ranks = static_cast<int>(nodeOfRank.size());
  std::vector<Target> targets;
  if (ranks == 1 || grids.empty()) return targets;
  std::map<std::pair<std::string, std::vector<int>>, std::size_t> known;
  const auto add = [&](std::string_view collective, moecclGroup_t group, std::size_t grid,
                       const std::vector<int>& key, const std::string& text) -> Target& {
    const auto [place, isNew] = known.try_emplace({std::string(collective), key}, targets.size());
    if (isNew) targets.push_back({{&collectiveNamed(collective)}, group, {}, text});
    Target& target = targets[place->second];
    if (target.grids.empty() || target.grids.back() != grid) target.grids.push_back(grid);
    return target;
  };
  const std::vector<int> world =
      patternOf(membersOf(grids[0], moecclGroupWorld, 0, ranks), nodeOfRank);
  add("alltoall", moecclGroupWorld, 0, world, "alltoall of " + textOfPattern(world) + " ranks");
  std::vector<std::set<Use>> uses;
  for (const moecclGridShape_t& shape : grids) uses.push_back(usesOf(shape));
  for (std::size_t grid = 0; grid < grids.size(); ++grid)
    for (const auto& [collective, group] : uses[grid]) {
      if (collectiveNamed(collective).usesGrid) continue;
      const std::vector<int> pattern =
          patternOf(membersOf(grids[grid], group, 0, ranks), nodeOfRank);
      add(collective, group, grid, pattern,
          collective + " of " + textOfPattern(pattern) + " ranks");
    }
  for (std::size_t grid = 0; grid < grids.size(); ++grid) {
    const moecclGridShape_t& shape = grids[grid];
    const auto ofGrid = [&](std::string_view collective, const std::string& text,
                            int mp) -> Target& {
      return add(collective, moecclGroupWorld, grid, {shape.nEp, shape.nEsp, shape.order, mp},
                 text + ", grid " + textOf(shape));
    };
    for (const auto& [collective, group] : uses[grid]) {
      if (!collectiveNamed(collective).usesGrid) continue;
      if (collective == kDispatch || collective == kSplitDispatch) {
        ofGrid(kDispatch, "dispatch and splitdispatch", kAnyMp);
      } else if (collective == kCombineAllGather && shape.nMp == 1) {
        Target& combine = ofGrid(kCombine, "", kAnyMp);
        if (combine.collectives.size() > 1) continue;
        combine.collectives.push_back(&collectiveNamed(collective));
        combine.text = "combine and combineallgather, grid " + textOf(shape);
        std::swap(combine.grids.front(), combine.grids.back());
      } else {
        ofGrid(collective, collective, collective == kCombineAllGather ? shape.nMp : kAnyMp);
      }
    }
  }
  return targets;
}

std::vector<SampleName> namesOf(std::string_view collective, const std::string& algorithm,
                                const moecclGridShape_t& measured, const moecclGridShape_t& shape) {
  if (collective == kCombineAllGather && measured.nMp != shape.nMp) return {};
  std::vector<SampleName> names;
  for (const std::string& same : sameAlgorithms(collective, algorithm, shape)) {
    names.push_back({collective, same, 1});
    if (collective == kDispatch) names.push_back({kSplitDispatch, same, shape.nMp});
    if (collective == kCombine && same != kTwice && shape.nMp == 1)
      names.push_back({kCombineAllGather, same == kOnce ? std::string(kSaaAtOnce) : same, 1});
  }
  return names;
}

std::vector<std::string> unlikeGroups(std::span<const moecclGridShape_t> grids,
                                      std::span<const int> nodeOfRank) {
  const int ranks = static_cast<int>(nodeOfRank.size());
  std::vector<std::string> unlike;
  for (const moecclGridShape_t& shape : grids)
    for (const auto& [name, group] :
         {std::pair{"MP", moecclGroupMp}, std::pair{"EP", moecclGroupEp},
          std::pair{"ESP", moecclGroupEsp}}) {
      const auto pattern = [&, group = group](int rank) {
        return patternOf(membersOf(shape, group, rank, ranks), nodeOfRank);
      };
      const std::vector<int> mine = pattern(0);
      for (int rank = 1; rank < ranks; ++rank) {
        if (pattern(rank) == mine) continue;
        std::string text = "rank " + std::to_string(rank) + "'s " + name + " group of grid " +
                           textOf(shape) + ": " + textOfPattern(pattern(rank)) +
                           " ranks, rank 0's " + textOfPattern(mine);
        unlike.push_back(std::move(text));
        break;
      }
    }
  return unlike;
}

}  // namespace moeccl::perf
