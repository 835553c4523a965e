// The machine where lanes are streams: the ops of one (lane, step) start together, after the lane's
// previous step and after the steps that hold their dependencies in other lanes.
#include <algorithm>
#include <numeric>

#include "src/verify/depth_first.h"
#include "src/verify/job.h"

namespace moeccl::verification {
namespace {

struct Step {
  std::int32_t rank;
  std::int16_t lane;
  std::int32_t step;
  std::int64_t begin;  // its ops: byStep_[begin ... the next step's begin]
};

// The graph of waits has two nodes per step: 2 i, step i starts, and 2 i + 1, step i has completed.
class StreamMachine {
 public:
  explicit StreamMachine(Job& job) : job_(job) {
    byStep_.resize(static_cast<size_t>(job.ops()));
    stepOf_.resize(byStep_.size());
    std::iota(byStep_.begin(), byStep_.end(), std::int64_t{0});
    for (int rank = 0; rank < job.ranks(); ++rank) {
      const auto key = [&](std::int64_t op) { return std::pair(job.at(op).lane, job.at(op).step); };
      const auto begin = byStep_.begin() + job.firstOp[rank];
      std::ranges::stable_sort(begin, byStep_.begin() + job.firstOp[rank + 1], {}, key);
      for (std::int64_t i = job.firstOp[rank]; i < job.firstOp[rank + 1]; ++i) {
        const Op& op = job.at(byStep_[i]);
        const bool same = !steps_.empty() && steps_.back().rank == rank &&
                          steps_.back().lane == op.lane && steps_.back().step == op.step;
        if (!same) steps_.push_back({rank, op.lane, op.step, i});
        stepOf_[byStep_[i]] = count() - 1;
      }
    }
  }

  void run() {
    const auto waits = [&](std::int64_t node, std::vector<std::int64_t>& list) {
      const std::int64_t step = node / 2;
      if (node % 2 == 0)
        startWaits(step, list);
      else
        endWaits(step, list);
    };
    std::vector<std::int64_t> circle = visitInOrder(2 * count(), waits, [](std::int64_t) {});
    if (circle.empty()) return;
    std::rotate(circle.begin(), std::ranges::min_element(circle), circle.end());
    report(circle);
  }

 private:
  std::int64_t count() const { return static_cast<std::int64_t>(steps_.size()); }
  static std::int64_t start(std::int64_t step) { return 2 * step; }
  static std::int64_t end(std::int64_t step) { return 2 * step + 1; }

  std::span<const std::int64_t> opsOf(std::int64_t step) const {
    const std::int64_t end = step + 1 < count() ? steps_[step + 1].begin : job_.ops();
    return {byStep_.data() + steps_[step].begin, static_cast<size_t>(end - steps_[step].begin)};
  }

  // The previous step of the same lane, or -1.
  std::int64_t before(std::int64_t step) const {
    if (step == 0) return -1;
    const Step &a = steps_[step - 1], &b = steps_[step];
    return a.rank == b.rank && a.lane == b.lane ? step - 1 : -1;
  }

  void startWaits(std::int64_t step, std::vector<std::int64_t>& list) const {
    if (before(step) >= 0) list.push_back(end(before(step)));
    const std::int64_t first = job_.firstOp[steps_[step].rank];
    const Plan& plan = job_.plans[steps_[step].rank];
    for (std::int64_t op : opsOf(step))
      for (OpRange range : plan.deps(job_.at(op)))
        for (int d = range.first; d < range.first + range.count; ++d)
          if (plan.ops[d].lane != steps_[step].lane) list.push_back(end(stepOf_[first + d]));
  }

  void endWaits(std::int64_t step, std::vector<std::int64_t>& list) const {
    list.push_back(start(step));
    for (std::int64_t op : opsOf(step))
      if (isMessage(op)) list.push_back(start(stepOf_[job_.partnerOf(op)]));
  }

  bool isMessage(std::int64_t op) const {
    const OpKind kind = job_.at(op).kind;
    return kind == OpKind::send || kind == OpKind::recv;
  }

  std::string nameOf(std::int64_t step) const {
    return "rank " + std::to_string(steps_[step].rank) + " lane " +
           std::to_string(steps_[step].lane) + " step " + std::to_string(steps_[step].step);
  }

  // Says who waits for whom; the subject is the first op in the circle that a message or a
  // dependency holds up.
  void report(std::span<const std::int64_t> circle) {
    constexpr size_t kShown = 8;
    std::string text = "is in a cyclic wait of streams: ";
    std::int64_t culprit = -1;
    for (size_t i = 0; i < circle.size(); ++i) {
      const std::int64_t from = circle[i] / 2, to = circle[(i + 1) % circle.size()] / 2;
      if (from == to) continue;
      const std::int64_t op = reason(circle[i], to);
      if (culprit < 0 && op >= 0) culprit = op;
      if (i >= kShown) continue;
      text += nameOf(from) + " waits for " + nameOf(to);
      if (op >= 0) text += " by its op " + std::to_string(job_.indexOf(op));
      text += "; ";
    }
    text += circle.size() > kShown ? "and so on" : "round and round";
    const std::int64_t subject = culprit >= 0 ? culprit : opsOf(circle[0] / 2)[0];
    job_.report(job_.rankOf[subject], job_.indexOf(subject), text);
  }

  // The op that makes a node wait for step `to`; -1 where the lane's order does.
  std::int64_t reason(std::int64_t node, std::int64_t to) const {
    if (node % 2 == 0 && before(node / 2) == to) return -1;
    for (std::int64_t op : opsOf(node / 2)) {
      if (node % 2 == 1) {
        if (isMessage(op) && stepOf_[job_.partnerOf(op)] == to) return op;
        continue;
      }
      const int rank = steps_[node / 2].rank;
      for (OpRange range : job_.plans[rank].deps(job_.at(op)))
        for (int d = range.first; d < range.first + range.count; ++d)
          if (stepOf_[job_.firstOp[rank] + d] == to) return op;
    }
    return -1;
  }

  Job& job_;
  std::vector<Step> steps_;           // by rank, then lane, then step
  std::vector<std::int64_t> byStep_;  // all ops, sorted by their step
  std::vector<std::int64_t> stepOf_;  // by op
};

}  // namespace

void checkByStreams(Job& job) { StreamMachine(job).run(); }

}  // namespace moeccl::verification
