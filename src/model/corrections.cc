// Fits a factor to each kind of cost, so that predictions of phases come near what they took.
#include "src/model/corrections.h"

#include <algorithm>
#include <cmath>

namespace moeccl {
namespace {

// Enough for kinds that come together in some phases and apart in others to be told apart; no more
// once no factor moves by as much as this.
constexpr int kRounds = 100;
constexpr double kStill = 1e-4;

}  // namespace

double Alternative::seconds(const Corrections& corrections) const {
  double all = besidePhases;
  for (const std::vector<Phase>& pass : phases)
    for (const Phase& phase : pass) all += corrections.seconds(phase.predicted);
  return all;
}

// Simultaneous multiplicative reconstruction: in each round a phase asks for the factor by which
// its prediction is off, and a kind takes the mean of what phases ask for, each by the share that
// the kind has in it. Factors stay positive, however far off predictions are, and a phase that is
// ten times too long asks for as much as one that is ten times too short.
Corrections correctionsOf(std::span<const Observation> observations) {
  Corrections factors;
  const double most = std::log(kMostCorrection);
  for (int round = 0; round < kRounds; ++round) {
    std::array<double, kCosts> asked{}, weights{};
    for (const Observation& it : observations) {
      const double predicted = factors.seconds(it.predicted);
      if (!(predicted > 0) || !(it.seconds > 0)) continue;
      const double off = std::log(it.seconds / predicted);
      for (std::size_t i = 0; i < kCosts; ++i) {
        const double weight = it.weight * factors.of[i] * it.predicted.of[i] / predicted;
        asked[i] += weight * off;
        weights[i] += weight;
      }
    }
    double moved = 0;
    for (std::size_t i = 0; i < kCosts; ++i) {
      if (weights[i] == 0) continue;
      const double now = std::log(factors.of[i]);
      const double next = now + (asked[i] - kDoubt * now) / (weights[i] + kDoubt);
      factors.of[i] = std::exp(std::clamp(next, -most, most));
      moved = std::max(moved, std::abs(std::clamp(next, -most, most) - now));
    }
    if (moved < kStill) break;
  }
  return factors;
}

}  // namespace moeccl
