// The machine where lanes are streams: the ops of one (lane, step) start together, after the lane's
// previous step and after the steps that hold their dependencies in other lanes.
#include <algorithm>
#include <numeric>

#include "src/verify/depth_first.h"
#include "src/verify/device_steps.h"

namespace moeccl::verification {
namespace {

class StreamMachine {
 public:
  explicit StreamMachine(Job& job) : job_(job), steps_(job) {
    std::vector<std::int64_t> ops;
    for (int rank = 0; rank < job.ranks(); ++rank) {
      ops.resize(job.plans[rank].ops.size());
      std::iota(ops.begin(), ops.end(), job.firstOp[rank]);
      const auto key = [&](std::int64_t op) { return std::pair(job.at(op).lane, job.at(op).step); };
      if (!std::ranges::is_sorted(ops, {}, key)) std::ranges::stable_sort(ops, {}, key);
      const Op* last = nullptr;
      for (std::int64_t i : ops) {
        const Op& op = job.at(i);
        if (last == nullptr || last->lane != op.lane || last->step != op.step)
          steps_.begin(rank, op.lane, op.step);
        steps_.add(i);
        last = &op;
      }
    }
  }

  void run() {
    const auto waits = [&](std::int64_t node, std::vector<std::int64_t>& list) {
      const std::int64_t step = Steps::stepAt(node);
      if (Steps::isEnd(node))
        steps_.endWaits(step, list);
      else
        startWaits(step, list);
    };
    std::vector<std::int64_t> circle = visitInOrder(steps_.nodes(), waits, [](std::int64_t) {});
    if (circle.empty()) return;
    std::rotate(circle.begin(), std::ranges::min_element(circle), circle.end());
    report(circle);
  }

 private:
  // The previous step of the same lane, or -1.
  std::int64_t before(std::int64_t step) const {
    if (step == 0) return -1;
    const Step &a = steps_[step - 1], &b = steps_[step];
    return a.rank == b.rank && a.lane == b.lane ? step - 1 : -1;
  }

  void startWaits(std::int64_t step, std::vector<std::int64_t>& list) const {
    if (before(step) >= 0) list.push_back(Steps::end(before(step)));
    const std::int64_t first = job_.firstOp[steps_[step].rank];
    const Plan& plan = job_.plans[steps_[step].rank];
    for (std::int64_t op : steps_.opsOf(step))
      for (OpRange range : plan.deps(job_.at(op)))
        for (int d = range.first; d < range.first + range.count; ++d)
          if (plan.ops[d].lane != steps_[step].lane)
            list.push_back(Steps::end(steps_.of(first + d)));
  }

  // Says who waits for whom; the subject is the first op in the circle that a message or a
  // dependency holds up.
  void report(std::span<const std::int64_t> circle) {
    constexpr size_t kShown = 8;
    std::string text = "is in a cyclic wait of streams: ";
    std::int64_t culprit = -1;
    for (size_t i = 0; i < circle.size(); ++i) {
      const std::int64_t from = Steps::stepAt(circle[i]),
                         to = Steps::stepAt(circle[(i + 1) % circle.size()]);
      if (from == to) continue;
      const std::int64_t op = reason(circle[i], to);
      if (culprit < 0 && op >= 0) culprit = op;
      if (i >= kShown) continue;
      text += steps_.nameOf(from) + " waits for " + steps_.nameOf(to);
      if (op >= 0) text += " by its op " + std::to_string(job_.indexOf(op));
      text += "; ";
    }
    text += circle.size() > kShown ? "and so on" : "round and round";
    const std::int64_t subject = culprit >= 0 ? culprit : steps_.opsOf(Steps::stepAt(circle[0]))[0];
    job_.report(job_.rankOf[subject], job_.indexOf(subject), text);
  }

  // The op that makes a node wait for step `to`; -1 where the lane's order does.
  std::int64_t reason(std::int64_t node, std::int64_t to) const {
    const std::int64_t step = Steps::stepAt(node);
    if (Steps::isEnd(node)) return steps_.messageTo(step, to);
    if (before(step) == to) return -1;
    const std::int64_t first = job_.firstOp[steps_[step].rank];
    for (std::int64_t op : steps_.opsOf(step))
      for (OpRange range : job_.plans[steps_[step].rank].deps(job_.at(op)))
        for (int d = range.first; d < range.first + range.count; ++d)
          if (steps_.of(first + d) == to) return op;
    return -1;
  }

  Job& job_;
  Steps steps_;  // by rank, then lane, then step
};

}  // namespace

void checkByStreams(Job& job) { StreamMachine(job).run(); }

}  // namespace moeccl::verification
