#include "src/select/group_text.h"

#include <vector>

namespace moeccl {
namespace {

struct Run {
  int node;
  int ranks;
};

std::vector<Run> runsOf(const Topology& topology) {
  std::vector<Run> runs;
  for (int rank = 0; rank < topology.ranks(); ++rank) {
    if (runs.empty() || runs.back().node != topology.nodeOf(rank))
      runs.push_back({topology.nodeOf(rank), 0});
    ++runs.back().ranks;
  }
  return runs;
}

void append(std::string& text, int count, char sign, int value) {
  if (!text.empty()) text += '+';
  text += std::to_string(count) + sign + std::to_string(value);
}

}  // namespace

std::string textOf(const Topology& topology) {
  const std::vector<Run> runs = runsOf(topology);
  std::string text;
  if (static_cast<int>(runs.size()) > topology.nodes()) {
    for (const Run& run : runs) append(text, run.ranks, '@', run.node);
    return text;
  }
  for (std::size_t begin = 0, end = 0; begin < runs.size(); begin = end) {
    while (end < runs.size() && runs[end].ranks == runs[begin].ranks) ++end;
    append(text, static_cast<int>(end - begin), 'x', runs[begin].ranks);
  }
  return text;
}

std::string textOf(const Grid& grid, const Topology& topology) {
  return "mp" + std::to_string(grid.mp) + ",ep" + std::to_string(grid.ep) +
         (grid.espConsecutive ? "" : "-first") + ",esp" + std::to_string(grid.esp) + " on " +
         textOf(topology);
}

}  // namespace moeccl
