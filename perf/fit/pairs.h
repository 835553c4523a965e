// Pairs of ranks, by which links are measured.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace moeccl::perf {

struct Pairing {
  std::vector<int> partner;  // of each rank; -1: none
  std::string text;          // "1x2": in a node, "2x1": between two, as textOfPattern()
};

// Rank 0 has a partner in each of them: neighbours in nodes, and ranks of one place in neighbouring
// nodes. Without those that there are not.
std::vector<Pairing> pairingsOf(std::span<const int> nodeOfRank);

}  // namespace moeccl::perf
