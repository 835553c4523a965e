// Code for several lanes that work on one thing in step, a warp of a GPU, which with one lane is
// plain code for a CPU. All lanes of a warp make the same calls; item i of a loop is the business
// of one lane, always the same, so that what one lane alone writes and reads needs no sync.
#pragma once

#include <cstdint>

#include "kernels/device.h"

namespace moeccl {

// Among lanes with the same key: how many lower ones there are, and how many in all.
struct Match {
  int before, all;
};

// An item and what it is chosen by; index -1: none.
struct Ranked {
  double key;
  std::int32_t index;
  // Before the other: a larger key or, of equals, a lower index.
  MOECCL_DEVICE bool before(const Ranked& other) const {
    if (index < 0 || other.index < 0) return other.index < 0 && index >= 0;
    return key > other.key || (key == other.key && index < other.index);
  }
};

// A set of lanes has these members. The results are the same on all of its lanes, but match's.
struct OneLane {
  static constexpr int kCount = 1;
  MOECCL_DEVICE static int index() { return 0; }
  // All lanes see behind it what any of them has written before.
  MOECCL_DEVICE static void sync() {}
  template <typename T>
  MOECCL_DEVICE static T sum(T value) {
    return value;
  }
  MOECCL_DEVICE static double max(double value) { return value; }
  MOECCL_DEVICE static Ranked first(const Ranked& value) { return value; }
  MOECCL_DEVICE static Match match(std::int32_t) { return {0, 1}; }
};

// Calls function(i) for each i that is this lane's.
template <typename Lanes, typename Function>
MOECCL_DEVICE void each(const Lanes& lanes, std::int64_t count, Function function) {
  for (std::int64_t i = lanes.index(); i < count; i += Lanes::kCount) function(i);
}

template <typename Lanes>
MOECCL_DEVICE bool owns(const Lanes& lanes, std::int64_t i) {
  return i % Lanes::kCount == lanes.index();
}

}  // namespace moeccl
