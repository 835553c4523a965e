// Times several calls in turns, repetition by repetition in shuffled order, until all medians are
// known well or time is up. Times that a hypervisor disturbed are set aside.
#include "perf/fit/rounds.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "perf/common/stolen.h"
#include "perf/fit/candidates.h"

namespace moeccl::perf {
namespace {

constexpr double kMostCalls = 1000;

using Clock = std::chrono::steady_clock;

double secondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// On this rank: the seconds of each call, or where they do not begin together the mean of all.
std::vector<double> timesOf(Team& team, const Turn& turn, int count, Calls calls) {
  team.barrier();
  Memory& memory = team.job().memory();
  if (count > 1) turn.call();  // what came before has left its own things in the caches
  memory.synchronize();
  std::vector<double> times;
  if (calls == Calls::apart) {
    for (int i = 0; i < count; ++i) {
      team.barrier();
      const auto begin = Clock::now();
      turn.call();
      memory.synchronize();
      times.push_back(secondsSince(begin));
    }
    return times;
  }
  if (calls == Calls::independent) team.barrier();
  const auto begin = Clock::now();
  for (int i = 0; i < count; ++i) turn.call();
  memory.synchronize();
  if (calls == Calls::independent) {
    team.setAsleep(true);  // others still compute
    team.barrier();
    team.setAsleep(false);
  }
  return {secondsSince(begin) / count};
}

// On the slowest rank, one call after the other.
double meanOf(const std::vector<double>& slowest) {
  return std::accumulate(slowest.begin(), slowest.end(), 0.0) / static_cast<double>(slowest.size());
}

// The number of calls of each turn, so that they last as long as a block should. The first call of
// each makes what later ones find ready.
std::vector<int> callsPerBlock(Team& team, const std::vector<Turn>& turns, const Rounds& rounds) {
  std::vector<double> once;
  for (const Turn& turn : turns) {
    turn.call();
    const auto begin = Clock::now();
    const double call = timesOf(team, turn, 1, rounds.calls)[0];
    once.push_back(rounds.calls == Calls::apart ? secondsSince(begin) : call);
  }
  std::vector<int> calls;
  for (const double seconds : team.slowest(once))
    calls.push_back(static_cast<int>(
        std::clamp(std::ceil(rounds.blockSeconds / std::max(seconds, 1e-9)), 1.0, kMostCalls)));
  return calls;
}

bool allSteady(std::vector<Turn>& turns, double percent) {
  for (const Turn& turn : turns)
    if (turn.seconds.size() < kMinRepetitions) return false;
  double fastest = std::numeric_limits<double>::infinity();
  for (const Turn& turn : turns) fastest = std::min(fastest, medianOf(turn.seconds).value);
  bool all = true;
  for (Turn& turn : turns) {
    const Median median = medianOf(turn.seconds);
    turn.steady = median.uncertainty * 100 <= percent;
    if (median.value <= kHopeless * fastest) all = all && turn.steady;
  }
  return all;
}

// The times of one turn that a hypervisor disturbed.
using Disturbed = std::vector<double>;

// Where there are too few others, disturbed times count too.
void makeDo(std::vector<Turn>& turns, std::vector<Disturbed>& disturbed) {
  for (std::size_t i = 0; i < turns.size(); ++i)
    while (turns[i].seconds.size() < kMinRepetitions && !disturbed[i].empty()) {
      turns[i].seconds.push_back(disturbed[i].back());
      disturbed[i].pop_back();
    }
}

}  // namespace

void takeTurns(Team& team, std::vector<Turn>& turns, const Rounds& rounds, bool counts) {
  const std::vector<int> calls = callsPerBlock(team, turns, rounds);
  std::vector<std::size_t> order(turns.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::mt19937 random;  // every rank's draws are the same
  std::vector<double> stolen(turns.size());
  std::vector<Disturbed> disturbed(turns.size());
  for (int repetition = 1; repetition <= rounds.maxRepetitions; ++repetition) {
    std::ranges::shuffle(order, random);
    std::vector<double> seconds(turns.size());
    for (const std::size_t turn : order) {
      const StolenTime meanwhile;
      std::vector<double> mine = timesOf(team, turns[turn], calls[turn], rounds.calls);
      stolen[turn] = meanwhile.disturbed() ? 1 : 0;
      for (double& time : mine) time = counts ? std::max(time, 1e-9) : 0;
      seconds[turn] = meanOf(team.slowest(mine));
    }
    const std::vector<double> onAny = team.slowest(stolen);
    for (std::size_t i = 0; i < turns.size(); ++i)
      (onAny[i] > 0 ? disturbed[i] : turns[i].seconds).push_back(seconds[i]);
    if (repetition < kMinRepetitions) continue;
    if (allSteady(turns, rounds.steadyPercent) || team.elapsed() > rounds.until) break;
  }
  makeDo(turns, disturbed);
  allSteady(turns, rounds.steadyPercent);
}

}  // namespace moeccl::perf
