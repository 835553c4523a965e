// Several ways to do one thing, measured in turns.
#pragma once

#include <functional>
#include <vector>

#include "perf/fit/median.h"
#include "perf/fit/team.h"

namespace moeccl::perf {

struct Turn {
  std::function<void()> call;  // nothing to do on a rank that has no part in it
  // Seconds per call of the slowest rank that counts, one for each repetition that nothing outside
  // of the machines disturbed (perf/common/stolen.h); with less than kMinRepetitions of these,
  // disturbed ones too.
  std::vector<double> seconds = {};
  bool steady = false;
};

enum class Calls {
  // One follows the other.
  inARow,
  // Before each a barrier of all ranks, as in a layer, which computes between two exchanges: an
  // algorithm that leaves some ranks idle is not as fast as its calls in a row, which begin on
  // those ranks before the last one is over.
  apart,
  // They do not wait for one another: they are over when all ranks are done. Where ranks share
  // processors, one that gets its turn late would else seem to have needed no longer than alone.
  independent,
};

struct Rounds {
  double steadyPercent;
  int maxRepetitions;
  double until;  // as Team::elapsed(): after that no more than kMinRepetitions
  Calls calls = Calls::inARow;
  double blockSeconds = 2e-3;  // of a turn's calls in a repetition
};
inline constexpr int kMinRepetitions = 3;
// Calls per repetition and turn that Rounds may make where one takes long: two before the
// repetitions.
inline constexpr int kMinCalls = kMinRepetitions + 2;

// Repeats all turns until those that are not hopeless are steady, in an order that is shuffled anew
// each time. A repetition of a turn is a barrier of all ranks and then calls for at least
// blockSeconds, with their barriers. `counts`: whether this rank's time does. Collective. Throws
// Interrupted, and what calls throw.
void takeTurns(Team& team, std::vector<Turn>& turns, const Rounds& rounds, bool counts);

}  // namespace moeccl::perf
