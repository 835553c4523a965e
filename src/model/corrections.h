// By how much predictions of a layer are off, by kind of cost: of links and of local work, so that
// what was measured of one schedule tells of all others.
#pragma once

#include <array>
#include <cstddef>
#include <numeric>
#include <span>
#include <string>
#include <vector>

namespace moeccl {

// What a phase costs. Exchanges have latencies, what they take for no bytes, and bytes, what they
// take beyond; of a plan that goes both ways, so much in nodes and so much between them.
enum class Cost {
  latencyInNode,
  bytesInNode,
  latencyBetween,
  bytesBetween,
  gateForward,
  expertsForward,
  movesForward,
  gateBackward,
  expertsBackward,
  movesBackward,
  end
};
inline constexpr std::size_t kCosts = static_cast<std::size_t>(Cost::end);
// Costs of links come first; the others are of local work.
inline constexpr std::size_t kLinkKinds = static_cast<std::size_t>(Cost::gateForward);
// As files have them.
inline constexpr std::array<const char*, kCosts> kCostNames = {
    "latencyInNode",  "bytesInNode",  "latencyBetween", "bytesBetween",    "gateForward",
    "expertsForward", "movesForward", "gateBackward",   "expertsBackward", "movesBackward"};

// The seconds of each kind of cost.
struct Costs {
  std::array<double, kCosts> of{};

  double& operator[](Cost cost) { return of[static_cast<std::size_t>(cost)]; }
  double operator[](Cost cost) const { return of[static_cast<std::size_t>(cost)]; }
  double seconds() const { return std::accumulate(of.begin(), of.end(), 0.0); }
};

// A factor for each kind of cost.
struct Corrections {
  Corrections() { of.fill(1); }
  // The seconds of these costs, corrected.
  double seconds(const Costs& costs) const {
    return std::inner_product(of.begin(), of.end(), costs.of.begin(), 0.0);
  }

  std::array<double, kCosts> of;
};

// A schedule that a layer may run under.
struct Alternative {
  struct Phase {
    std::string name;
    Costs predicted;
    // It goes on beside others, so that what it takes shows nowhere.
    bool beside = false;
  };
  std::string name;                          // "S1", "S1:chunks=2"
  std::array<std::vector<Phase>, 2> phases;  // by pass; none: no such pass
  double besidePhases = 0;                   // seconds of all passes
  bool measured = false;                     // predicted by what a profile has measured

  double seconds(const Corrections& corrections) const;
};

// A phase that was measured. Weights of a schedule's phases: what share of its time each is.
struct Observation {
  Costs predicted;
  double seconds;
  double weight;
};

// Factors may be from 1 / kMostCorrection to this.
inline constexpr double kMostCorrection = 1000;

// The corrections with which predictions come near what was measured, each phase by its weight. A
// kind that hardly counted in anything stays near 1: as if it had kDoubt of a schedule's time, and
// that was predicted well. So do kinds that nothing was seen of.
inline constexpr double kDoubt = 0.0005;
Corrections correctionsOf(std::span<const Observation> observations);

}  // namespace moeccl
