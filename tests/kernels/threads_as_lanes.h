// Lanes of kernels/lanes.h that are threads: what a warp does in step, where there is no GPU.
#pragma once

#include <algorithm>
#include <barrier>
#include <thread>
#include <vector>

#include "kernels/lanes.h"

namespace moeccl {

template <int kLanes>
class ThreadLanes {
 public:
  static constexpr int kCount = kLanes;
  struct Shared {
    std::barrier<> barrier{kLanes};
    const void* values[kLanes];
  };

  ThreadLanes(int index, Shared* shared) : index_(index), shared_(shared) {}

  int index() const { return index_; }
  void sync() const { shared_->barrier.arrive_and_wait(); }
  template <typename T>
  T sum(T value) const {
    T total{};
    exchange(value, [&](const T& other) { total += other; });
    return total;
  }
  double max(double value) const {
    double highest = value;
    exchange(value, [&](double other) { highest = std::max(highest, other); });
    return highest;
  }
  Ranked first(const Ranked& value) const {
    Ranked best{0, -1};
    exchange(value, [&](const Ranked& other) {
      if (other.before(best)) best = other;
    });
    return best;
  }
  Match match(std::int32_t key) const {
    Match match{0, 0};
    int lane = 0;
    exchange(key, [&](std::int32_t other) {
      if (other == key) ++match.all, match.before += lane < index_;
      ++lane;
    });
    return match;
  }

 private:
  template <typename T, typename Function>
  void exchange(const T& value, Function function) const {
    shared_->values[index_] = &value;
    sync();
    for (const void* other : shared_->values) function(*static_cast<const T*>(other));
    sync();
  }

  int index_;
  Shared* shared_;
};

// Calls function(lanes) on each of kLanes threads.
template <int kLanes, typename Function>
void onLanes(Function function) {
  typename ThreadLanes<kLanes>::Shared shared;
  std::vector<std::thread> threads;
  for (int index = 0; index < kLanes; ++index)
    threads.emplace_back([&, index] { function(ThreadLanes<kLanes>(index, &shared)); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace moeccl
