// How a profile calls the group of ranks that a collective was measured on. Groups of one name take
// the same time, as far as the model knows.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "algorithms/grid.h"
#include "algorithms/topology.h"

namespace moeccl {

// "2x4": 2 nodes with 4 ranks each, node by node; "1x4+1x3". Where ranks are not numbered node by
// node, runs of them: "1@0+1@1+1@0+1@1", ranks @ node.
std::string textOf(const Topology& topology);

// "mp2,ep4,esp2 on 2x4": ESP groups are consecutive; "mp2,ep4-first,esp2 on 2x4": EP groups are.
std::string textOf(const Grid& grid, const Topology& topology);

// What a text says. With ", alone" behind it: measured while all other ranks were idle.
struct GroupText {
  Topology topology;
  std::optional<Grid> grid;
  bool alone = false;
};
// Nothing for a text that is none of those above, or of more than `most` ranks.
std::optional<GroupText> groupOf(std::string_view text, int most);

}  // namespace moeccl
