// A plan made ready to run many times: what can be derived from it once, before any size is known.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "algorithms/plan.h"

namespace moeccl {

class PreparedPlan {
 public:
  // Throws std::invalid_argument when the plan needs more lanes, or more messages between a pair,
  // than a tag can count, or lets a receive depend on something.
  explicit PreparedPlan(Plan plan);

  const Plan& plan() const { return plan_; }
  int ops() const { return static_cast<int>(plan_.ops.size()); }

  // How many ops each op waits for.
  std::span<const std::int32_t> waitsFor() const { return waitsFor_; }
  // The ops that wait for `op`.
  std::span<const std::int32_t> successors(int op) const {
    return {successors_.data() + successorsBegin_[op],
            static_cast<std::size_t>(successorsBegin_[op + 1] - successorsBegin_[op])};
  }
  // Which message of its pair and lane a send or a receive is.
  std::int32_t sequence(int op) const { return sequence_[op]; }
  // The bits of messageNumber() that messages to this rank differ in.
  std::uint32_t messageBits() const { return messageBits_; }
  // All receives: they may be posted before anything else.
  std::span<const std::int32_t> receives() const { return receives_; }
  // What can start at once, sends before copies so that the network does not wait for memory.
  std::span<const std::int32_t> first() const { return first_; }

 private:
  Plan plan_;
  std::vector<std::int32_t> waitsFor_, successorsBegin_, successors_, sequence_, receives_, first_;
  std::uint32_t messageBits_ = 0;
};

}  // namespace moeccl
