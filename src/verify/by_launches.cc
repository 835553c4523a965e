// The machine with one stream for everything: each step starts after all that its rank has launched
// before (algorithms/launch_order.h). It proves nothing about order that the lanes' streams have not
// proved already, but that no step needs another to run beside it.
#include "algorithms/launch_order.h"
#include "src/verify/depth_first.h"
#include "src/verify/job.h"

namespace moeccl::verification {
namespace {

// As for streams, the graph of waits has two nodes per step: 2 i, step i starts, and 2 i + 1, step i has
// completed.
class LaunchMachine {
 public:
  explicit LaunchMachine(Job& job) : job_(job), stepOf_(static_cast<size_t>(job.ops())) {
    for (int rank = 0; rank < job.ranks(); ++rank) {
      const LaunchOrder order = launchOrder(job.plans[rank]);
      for (const Launch& launch : order.launches) {
        steps_.push_back({rank, launch.lane, launch.step, static_cast<std::int64_t>(ops_.size())});
        for (std::int32_t op : order.opsOf(launch)) {
          ops_.push_back(job.firstOp[rank] + op);
          stepOf_[ops_.back()] = count() - 1;
        }
      }
    }
  }

  void run() {
    const auto waits = [&](std::int64_t node, std::vector<std::int64_t>& list) {
      const std::int64_t step = node / 2;
      if (node % 2 == 0) {
        if (step > 0 && steps_[step - 1].rank == steps_[step].rank) list.push_back(node - 1);
        return;
      }
      list.push_back(node - 1);
      for (std::int64_t op : opsOf(step))
        if (isMessage(op)) list.push_back(2 * stepOf_[job_.partnerOf(op)]);
    };
    const std::vector<std::int64_t> circle = visitInOrder(2 * count(), waits, [](std::int64_t) {});
    if (!circle.empty()) report(circle);
  }

 private:
  struct Step {
    std::int32_t rank;
    std::int16_t lane;
    std::int32_t step;
    std::int64_t begin;  // its ops: ops_[begin ... the next step's begin]
  };

  std::int64_t count() const { return static_cast<std::int64_t>(steps_.size()); }

  std::span<const std::int64_t> opsOf(std::int64_t step) const {
    const std::int64_t end = step + 1 < count() ? steps_[step + 1].begin : job_.ops();
    return {ops_.data() + steps_[step].begin, static_cast<size_t>(end - steps_[step].begin)};
  }

  bool isMessage(std::int64_t op) const {
    const OpKind kind = job_.at(op).kind;
    return kind == OpKind::send || kind == OpKind::recv;
  }

  std::string nameOf(std::int64_t step) const {
    return "rank " + std::to_string(steps_[step].rank) + " lane " +
           std::to_string(steps_[step].lane) + " step " + std::to_string(steps_[step].step);
  }

  // The subject is the first message of the circle.
  void report(std::span<const std::int64_t> circle) {
    constexpr size_t kShown = 8;
    std::string text = "is in a cyclic wait of launches: ";
    std::int64_t subject = -1;
    for (size_t i = 0; i < circle.size(); ++i) {
      const std::int64_t from = circle[i] / 2, to = circle[(i + 1) % circle.size()] / 2;
      if (from == to) continue;
      if (i < kShown) text += nameOf(from) + " waits for " + nameOf(to) + "; ";
      for (std::int64_t op : opsOf(from))
        if (subject < 0 && isMessage(op) && stepOf_[job_.partnerOf(op)] == to) subject = op;
    }
    text += circle.size() > kShown ? "and so on" : "round and round";
    job_.report(job_.rankOf[subject], job_.indexOf(subject), text);
  }

  Job& job_;
  std::vector<Step> steps_;           // by rank, then in launch order
  std::vector<std::int64_t> ops_;     // step by step
  std::vector<std::int64_t> stepOf_;  // by op
};

}  // namespace

void checkByLaunches(Job& job) { LaunchMachine(job).run(); }

}  // namespace moeccl::verification
