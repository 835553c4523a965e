// One collective on one kind of group: by all candidates, small sizes to large ones.
#pragma once

#include <moeccl/model.h>

#include <string>
#include <vector>

#include "perf/fit/candidates.h"
#include "perf/fit/options.h"
#include "perf/fit/rounds.h"

namespace moeccl::perf {

struct Subject {
  std::vector<Candidate> candidates;  // whose buffers have the same blocks
  World world;                        // the ranks of the group, or the grid
  moecclComm_t comm;                  // of the group, or of the grid; NULL: this rank has no part
  bool counts;                        // whether this rank's time does
  Calls calls = Calls::inARow;
};

struct Point {
  Candidate candidate;
  std::size_t bytes;  // of a rank's send buffer
  Median seconds;
  bool steady;
};

struct Swept {
  std::vector<Point> points;
  std::size_t cutAt = 0;  // the first size for which there was no time; 0: none
};

// Until Team::elapsed() is about `until`. Calls `showSize` with each size. Collective over all
// ranks. Throws as takeTurns() and makeCompetitor().
Swept sweep(Team& team, const FitOptions& options, const Subject& subject, double until,
            const std::function<void(std::size_t)>& showSize);

// With the algorithms to measure, the same on all ranks: those that are likely to be the fastest
// for some size. `cluster` has the subject's communicator or grid; NULL on ranks whose time does
// not count. Collective.
std::vector<Candidate> candidatesFor(const Job& job, const FitOptions& options,
                                     const MeasuredCollective& collective,
                                     const moecclCluster_t* cluster);

}  // namespace moeccl::perf
