// Which algorithms are still worth measuring as sizes grow.
#pragma once

#include <string>
#include <vector>

#include "perf/common/competitor.h"

namespace moeccl::perf {

// An algorithm that takes longer than this many times the fastest is not waited for, and may be
// given up.
inline constexpr double kHopeless = 4;

struct Candidate {
  const MeasuredCollective* collective;
  std::string algorithm;
};

struct TimedCandidate {
  Candidate candidate;
  Competitor* competitor;  // nullptr: this rank has no part
  double last = 0;         // seconds at the largest size so far
  double before = 0;       // and at the size before that; 0: there is none
  double slower = 0;       // than the fastest, at the largest
  int hopeless = 0;        // sizes, one after the other
};

// The least `last`.
double fastestOf(const std::vector<TimedCandidate>& candidates);

// Called once for each size, when `last` is known; `before`: fastestOf() the size before. Where
// latency is all, nobody is hopeless: what takes many steps may still move the most bytes. So a
// size counts only where bytes cost the fastest something, and against those alone that do not
// catch up.
void dropHopeless(std::vector<TimedCandidate>& candidates, double before);

// Whether another is the fastest at the largest size than at the one before.
bool overtaken(const std::vector<TimedCandidate>& candidates);

}  // namespace moeccl::perf
