// What is measured: every collective on every kind of group that the grids have, once.
#pragma once

#include <moeccl/moeccl.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "perf/common/collectives.h"

namespace moeccl::perf {

struct Target {
  // Measured in turns, as they do the same: more than one are combine and, where MP groups have one
  // rank, combineallgather.
  std::vector<const MeasuredCollective*> collectives;
  moecclGroup_t group;  // moecclGroupWorld: of the grid, or of all ranks
  // Places among all grids of those that have it. It is measured on the first of them.
  std::vector<std::size_t> grids;
  std::string text;  // "allreduce of 2x4 ranks", "dispatch and splitdispatch, grid 2,4,2"
};

// What a sample is of.
struct SampleName {
  std::string_view collective;
  std::string algorithm;
  std::int64_t times;  // as many bytes of the send buffer
};

// The names under which one sample counts. It is of a grid's collective with this algorithm,
// measured on `measured`. On the grid `shape`, which has the same EP and ESP groups, it counts as
// itself and as what has the same plan. No names where MP groups matter, and differ.
std::vector<SampleName> namesOf(std::string_view collective, const std::string& algorithm,
                                const moecclGridShape_t& measured, const moecclGridShape_t& shape);

// Throws std::logic_error for a name that there is not.
const MeasuredCollective& collectiveNamed(std::string_view name);

// The ranks of `rank`'s group, in the group's order.
std::vector<int> membersOf(const moecclGridShape_t& shape, moecclGroup_t group, int rank,
                           int ranks);

// The node of each member, nodes numbered by their first member: groups that look alike have equal
// ones.
std::vector<int> patternOf(std::span<const int> members, std::span<const int> nodeOfRank);

// "2x4": 2 nodes with 4 ranks each; "1x3+1x1". Not in the order of the ranks.
std::string textOfPattern(std::span<const int> pattern);

// The collectives that targets have.
std::vector<std::string> measurableCollectives();

// The targets of rank 0's groups: first the all-to-all of all ranks, then each collective that
// layers call on the groups, under the schedules that the library has. Groups of one rank call
// none.
std::vector<Target> targetsOf(std::span<const moecclGridShape_t> grids,
                              std::span<const int> nodeOfRank);

// Groups that no profile of this run can hold: they look like none of rank 0's, which writes it.
std::vector<std::string> unlikeGroups(std::span<const moecclGridShape_t> grids,
                                      std::span<const int> nodeOfRank);

}  // namespace moeccl::perf
