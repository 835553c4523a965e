// The steps of all ranks, as the machines with streams see them: ops that start together.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/verify/job.h"

namespace moeccl::verification {

struct Step {
  std::int32_t rank;
  std::int16_t lane;
  std::int32_t step;
  std::int64_t begin;  // its ops: from here to the next step's begin
};

// Steps are numbered in the order in which they are begun, rank by rank. The graph of their waits
// has two nodes for each: start(i), the step starts, and end(i), it has completed.
class Steps {
 public:
  explicit Steps(const Job& job) : job_(job), stepOf_(static_cast<size_t>(job.ops())) {
    ops_.reserve(stepOf_.size());
  }

  void begin(int rank, std::int16_t lane, std::int32_t step) {
    steps_.push_back({rank, lane, step, static_cast<std::int64_t>(ops_.size())});
  }
  // To the step that was begun last.
  void add(std::int64_t op) {
    ops_.push_back(op);
    stepOf_[op] = count() - 1;
  }

  static std::int64_t start(std::int64_t step) { return 2 * step; }
  static std::int64_t end(std::int64_t step) { return 2 * step + 1; }
  static std::int64_t stepAt(std::int64_t node) { return node / 2; }
  static bool isEnd(std::int64_t node) { return node % 2 == 1; }
  std::int64_t nodes() const { return 2 * count(); }

  std::int64_t count() const { return static_cast<std::int64_t>(steps_.size()); }
  const Step& operator[](std::int64_t step) const { return steps_[step]; }
  std::int64_t of(std::int64_t op) const { return stepOf_[op]; }

  std::span<const std::int64_t> opsOf(std::int64_t step) const {
    const std::int64_t end =
        step + 1 < count() ? steps_[step + 1].begin : static_cast<std::int64_t>(ops_.size());
    return {ops_.data() + steps_[step].begin, static_cast<size_t>(end - steps_[step].begin)};
  }

  // A step has completed when its messages have, which wait for the other ends to start.
  void endWaits(std::int64_t step, std::vector<std::int64_t>& list) const {
    list.push_back(start(step));
    for (std::int64_t op : opsOf(step))
      if (isMessage(op)) list.push_back(start(of(job_.partnerOf(op))));
  }
  // The message by which step `from` waits for step `to`; -1: none.
  std::int64_t messageTo(std::int64_t from, std::int64_t to) const {
    for (std::int64_t op : opsOf(from))
      if (isMessage(op) && of(job_.partnerOf(op)) == to) return op;
    return -1;
  }

  std::string nameOf(std::int64_t step) const {
    return "rank " + std::to_string(steps_[step].rank) + " lane " +
           std::to_string(steps_[step].lane) + " step " + std::to_string(steps_[step].step);
  }

 private:
  bool isMessage(std::int64_t op) const {
    const OpKind kind = job_.at(op).kind;
    return kind == OpKind::send || kind == OpKind::recv;
  }

  const Job& job_;
  std::vector<Step> steps_;
  std::vector<std::int64_t> ops_;     // step by step
  std::vector<std::int64_t> stepOf_;  // by op
};

}  // namespace moeccl::verification
