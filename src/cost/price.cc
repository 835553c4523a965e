#include "src/cost/price.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace moeccl {
namespace {

using Step = std::pair<int, int>;  // lane, step

struct Work {
  double own = 0;      // seconds of this rank alone
  double latency = 0;  // the longest of its messages
  double uplink = 0;   // of the node's uplink
  int crowd = 0;       // messages that share it
  std::vector<Step> after;
};

using Schedule = std::map<Step, Work>;

// Blocks that do not lie one after the other are copied before they are sent, or after they came.
bool scattered(std::span<const Blocks> runs) {
  int next = runs[0].first;
  for (const Blocks& run : runs) {
    if (run.buffer != runs[0].buffer || run.first != next || (run.stride != 1 && run.count > 1))
      return true;
    next = run.first + run.count;
  }
  return false;
}

Schedule scheduleOf(const Topology& topology, int node, const Plan& plan, std::size_t blockBytes,
                    const Links& links) {
  const double piece = static_cast<double>(blockBytes) / plan.pieces;
  Schedule schedule;
  for (const Op& op : plan.ops) {
    Work& work = schedule[{op.lane, op.step}];
    const std::span<const Blocks> blocks = op.kind == OpKind::recv ? plan.dst(op) : plan.src(op);
    const double bytes = piece * static_cast<double>(blockCount(blocks));
    if (op.kind == OpKind::copy || op.kind == OpKind::reduce) {
      work.own += bytes * links.betaMemory;
    } else {
      const bool between = topology.nodeOf(op.peer) != node;
      if (scattered(blocks)) work.own += bytes * links.betaMemory;
      work.latency = std::max(work.latency, between ? links.latencyBetween : links.latencyInNode);
      if (op.kind == OpKind::send && between) {
        work.own += links.overheadBetween;
        ++work.crowd;
        work.uplink += std::max(links.gapUplink, bytes * links.betaUplink);
      } else if (op.kind == OpKind::send) {
        work.own += links.overheadInNode + bytes * links.betaInNode;
      }
    }
    for (OpRange range : plan.deps(op))
      for (int d = range.first; d < range.first + range.count; ++d)
        if (plan.ops[d].lane != op.lane)
          work.after.emplace_back(plan.ops[d].lane, plan.ops[d].step);
  }
  return schedule;
}

// When each step of a rank is over; a verified plan has no circles.
class Finish {
 public:
  Finish(const Schedule& schedule, const std::map<Step, double>& uplink)
      : schedule_(schedule), uplink_(uplink) {}

  double last() {
    double latest = 0;
    for (const auto& [step, work] : schedule_) latest = std::max(latest, of(step));
    return latest;
  }

 private:
  double of(const Step& step) {
    const auto known = finish_.find(step);
    if (known != finish_.end()) return known->second;
    const auto at = schedule_.find(step);
    double start = 0;
    if (at != schedule_.begin() && std::prev(at)->first.first == step.first)
      start = of(std::prev(at)->first);
    for (const Step& other : at->second.after) start = std::max(start, of(other));
    const double shared = at->second.uplink > 0 ? uplink_.at(step) : 0;
    return finish_[step] = start + at->second.latency + at->second.own + shared;
  }

  const Schedule& schedule_;
  const std::map<Step, double>& uplink_;  // seconds that the node's messages of a step take it
  std::map<Step, double> finish_;
};

}  // namespace

double price(const Topology& topology, int node, std::span<const Plan> plans,
             std::size_t blockBytes, const Links& links) {
  std::vector<Schedule> schedules;
  std::map<Step, double> uplink;
  for (const Plan& plan : plans) {
    schedules.push_back(scheduleOf(topology, node, plan, blockBytes, links));
    for (const auto& [step, work] : schedules.back())
      uplink[step] += work.uplink * (1 + links.crowding * std::max(0, work.crowd - links.alone));
  }
  double slowest = 0;
  for (const Schedule& schedule : schedules)
    slowest = std::max(slowest, Finish(schedule, uplink).last());
  return slowest;
}

}  // namespace moeccl
