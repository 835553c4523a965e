// The machine with one stream for everything: each step starts after all that its rank has launched
// before (algorithms/launch_order.h). It proves nothing about order that the lanes' streams have
// not proved already, but that no step needs another to run beside it.
#include "algorithms/launch_order.h"
#include "src/verify/depth_first.h"
#include "src/verify/device_steps.h"

namespace moeccl::verification {
namespace {

class LaunchMachine {
 public:
  explicit LaunchMachine(Job& job) : job_(job), steps_(job) {
    for (int rank = 0; rank < job.ranks(); ++rank) {
      const LaunchOrder order = launchOrder(job.plans[rank]);
      for (const Launch& launch : order.launches) {
        steps_.begin(rank, launch.lane, launch.step);
        for (std::int32_t op : order.opsOf(launch)) steps_.add(job.firstOp[rank] + op);
      }
    }
  }

  void run() {
    const auto waits = [&](std::int64_t node, std::vector<std::int64_t>& list) {
      const std::int64_t step = Steps::stepAt(node);
      if (Steps::isEnd(node))
        steps_.endWaits(step, list);
      else if (step > 0 && steps_[step - 1].rank == steps_[step].rank)
        list.push_back(Steps::end(step - 1));
    };
    const std::vector<std::int64_t> circle =
        visitInOrder(steps_.nodes(), waits, [](std::int64_t) {});
    if (!circle.empty()) report(circle);
  }

 private:
  // The subject is the first message of the circle.
  void report(std::span<const std::int64_t> circle) {
    constexpr size_t kShown = 8;
    std::string text = "is in a cyclic wait of launches: ";
    std::int64_t subject = -1;
    for (size_t i = 0; i < circle.size(); ++i) {
      const std::int64_t from = Steps::stepAt(circle[i]),
                         to = Steps::stepAt(circle[(i + 1) % circle.size()]);
      if (from == to) continue;
      if (i < kShown) text += steps_.nameOf(from) + " waits for " + steps_.nameOf(to) + "; ";
      if (subject < 0) subject = steps_.messageTo(from, to);
    }
    text += circle.size() > kShown ? "and so on" : "round and round";
    job_.report(job_.rankOf[subject], job_.indexOf(subject), text);
  }

  Job& job_;
  Steps steps_;  // by rank, then in launch order
};

}  // namespace

void checkByLaunches(Job& job) { LaunchMachine(job).run(); }

}  // namespace moeccl::verification
