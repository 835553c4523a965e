// Writes groups as text, such as "mp2,ep4,esp2 on 2x4", and reads such texts within bounds.
#include "src/model/group_text.h"

#include <charconv>
#include <cstdint>
#include <utility>
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

// Takes what a text begins with away from it.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  bool take(std::string_view expected) {
    if (!text_.starts_with(expected)) return false;
    text_.remove_prefix(expected.size());
    return true;
  }
  // Below 0: there is no number of 0 to `most`.
  int number(int most) {
    int value = -1;
    const char* const begin = text_.data();
    const auto [end, error] = std::from_chars(begin, begin + text_.size(), value);
    if (error != std::errc() || value < 0 || value > most || *begin == '-') return -1;
    text_.remove_prefix(static_cast<std::size_t>(end - begin));
    return value;
  }
  bool atEnd() const { return text_.empty(); }

 private:
  std::string_view text_;
};

// "mp2,ep4-first,esp2"
std::optional<Grid> takeGrid(Scanner& text, int most) {
  Grid grid;
  grid.mp = text.number(most);
  if (!text.take(",ep")) return std::nullopt;
  grid.ep = text.number(most);
  grid.espConsecutive = !text.take("-first");
  if (!text.take(",esp")) return std::nullopt;
  grid.esp = text.number(most);
  if (grid.mp < 1 || grid.ep < 1 || grid.esp < 1) return std::nullopt;
  return grid;
}

// "2x4+1x3", "1@0+1@1"
std::optional<Topology> takeTopology(Scanner& text, int most) {
  std::vector<int> nodeOfRank;
  int nodes = 0;
  do {
    const int count = text.number(most);
    const bool byNode = text.take("x");
    if (!byNode && !text.take("@")) return std::nullopt;
    const int value = text.number(most);
    const std::int64_t ranks = byNode ? std::int64_t{count} * value : count;
    if (count < 1 || value < (byNode ? 1 : 0) ||
        ranks > most - static_cast<std::int64_t>(nodeOfRank.size()))
      return std::nullopt;
    for (int i = 0; i < ranks; ++i) nodeOfRank.push_back(byNode ? nodes + i / value : value);
    nodes += byNode ? count : 0;
  } while (text.take("+"));
  return Topology(nodeOfRank);
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

std::optional<GroupText> groupOf(std::string_view name, int most) {
  Scanner text(name);
  std::optional<Grid> grid;
  if (text.take("mp")) {
    grid = takeGrid(text, most);
    if (!grid || !text.take(" on ")) return std::nullopt;
  }
  std::optional<Topology> topology = takeTopology(text, most);
  if (!topology) return std::nullopt;
  const bool alone = text.take(", alone");
  if (!text.atEnd()) return std::nullopt;
  if (grid && (std::int64_t{grid->ep} * grid->esp != topology->ranks() ||
               topology->ranks() % grid->mp != 0))
    return std::nullopt;
  return GroupText{std::move(*topology), grid, alone};
}

}  // namespace moeccl
