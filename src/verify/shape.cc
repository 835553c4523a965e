// What can be said of one op by itself: everything that it names exists.
#include <algorithm>
#include <cstdint>

#include "src/verify/job.h"

namespace moeccl::verification {
namespace {

bool fits(PoolRange range, size_t pool) {
  return range.begin >= 0 && range.count >= 0 &&
         static_cast<size_t>(range.begin) + static_cast<size_t>(range.count) <= pool;
}

class ShapeCheck {
 public:
  ShapeCheck(Job& job, int rank) : job_(job), rank_(rank), plan_(job.plans[rank]) {}

  void run() {
    if (plan_.pieces < 1 || plan_.pieces != job_.pieces) {
      job_.report(rank_, -1,
                  "cuts blocks into " + std::to_string(plan_.pieces) + " pieces, rank 0 into " +
                      std::to_string(job_.pieces));
      return;
    }
    if (job_.promise.sized &&
        (plan_.relays != job_.plans[0].relays || (!plan_.relays && !plan_.scratch.empty()))) {
      job_.report(rank_, -1,
                  plan_.scratch.empty()
                      ? "does not say, as rank 0 does, whether blocks are kept in scratch"
                      : "has scratch but does not say that blocks are kept there");
      return;
    }
    if (plan_.lanes < 1 || plan_.lanes > job_.limits.lanes)
      job_.report(rank_, -1,
                  "has " + std::to_string(plan_.lanes) + " lanes; there must be 1 to " +
                      std::to_string(job_.limits.lanes));
    if (plan_.lanes != job_.plans[0].lanes)
      job_.report(rank_, -1,
                  "has " + std::to_string(plan_.lanes) + " lanes, rank 0 has " +
                      std::to_string(job_.plans[0].lanes));
    for (size_t i = 0; !job_.promise.uniform && i < plan_.scratch.size() && !job_.full(); ++i) {
      const Payload payload = plan_.scratch[i];
      const bool exists = payload.rank >= 0 && payload.rank < job_.ranks() && payload.block >= 0 &&
                          payload.block < job_.inputs[payload.rank];
      if (!exists)
        job_.report(rank_, -1,
                    "has " + blockName(Buffer::scratch, static_cast<int>(i)) + " as large as " +
                        payloadName(payload) + ", which does not exist");
    }
    for (size_t i = 0; i < plan_.ops.size() && !job_.full(); ++i) check(static_cast<int>(i));
  }

 private:
  void report(const std::string& what) { job_.report(rank_, op_, what); }

  // An op whose ranges do not even exist cannot be described.
  void reportMalformed(const std::string& what) {
    job_.report(rank_, -1, "op " + std::to_string(op_) + " " + what);
  }

  void check(int index) {
    op_ = index;
    const Op& op = plan_.ops[index];
    if (op.kind > OpKind::reduce) return reportMalformed("is of no known kind");
    if (!fits(op.src, plan_.blockPool.size()) || !fits(op.dst, plan_.blockPool.size()))
      return reportMalformed("has blocks outside the plan's pool");
    if (!fits(op.deps, plan_.depPool.size()))
      return reportMalformed("has dependencies outside the plan's pool");
    for (const std::span<const Blocks> runs : {plan_.src(op), plan_.dst(op)})
      for (const Blocks& run : runs)
        if (run.buffer > Buffer::scratch) return reportMalformed("names a buffer that is none");

    checkPeer(op);
    if (op.lane < 0 || op.lane >= plan_.lanes)
      report("is on lane " + std::to_string(op.lane) + " of " + std::to_string(plan_.lanes));
    if (op.step < 0) report("is in step " + std::to_string(op.step) + ", before the first");
    if (!blocksExist(plan_.src(op)) || !blocksExist(plan_.dst(op))) return;
    checkCounts(op);
    checkDeps(op);
  }

  void checkPeer(const Op& op) {
    const bool message = op.kind == OpKind::send || op.kind == OpKind::recv;
    if (!message && op.peer != -1)
      report("stays inside its rank but names rank " + std::to_string(op.peer) + " as its peer");
    if (message && (op.peer < 0 || op.peer >= job_.ranks()))
      report("names a rank that is not one of 0.." + std::to_string(job_.ranks() - 1));
    if (message && op.peer == rank_) report("is a message to itself; a copy would do");
  }

  std::int64_t blocksIn(Buffer buffer) const {
    switch (buffer) {
      case Buffer::input:
        return job_.inputs[rank_];
      case Buffer::output:
        return job_.outputs[rank_];
      case Buffer::scratch:
        break;
    }
    return static_cast<std::int64_t>(plan_.scratch.size());
  }

  bool blocksExist(std::span<const Blocks> runs) {
    for (const Blocks& run : runs) {
      const std::int64_t last = run.first + (static_cast<std::int64_t>(run.count) - 1) * run.stride;
      const std::int64_t low = std::min<std::int64_t>(run.first, last);
      const std::int64_t high = std::max<std::int64_t>(run.first, last);
      if (run.count < 1) {
        report("lists " + std::to_string(run.count) + " blocks");
        return false;
      }
      if (low < 0 || high >= blocksIn(run.buffer)) {
        const std::int64_t bad = low < 0 ? low : high;
        report("names " + blockName(run.buffer, static_cast<int>(bad)) + "; there are " +
               std::to_string(blocksIn(run.buffer)));
        return false;
      }
    }
    return true;
  }

  void checkCounts(const Op& op) {
    const std::int64_t src = blockCount(plan_.src(op)), dst = blockCount(plan_.dst(op));
    const auto counts = [&] { return std::to_string(src) + " to " + std::to_string(dst); };
    switch (op.kind) {
      case OpKind::send:
        if (src < 1 || dst > 0) report("must read blocks and write none; it goes from " + counts());
        break;
      case OpKind::recv:
        if (src > 0 || dst < 1) report("must write blocks and read none; it goes from " + counts());
        break;
      case OpKind::copy:
        if (src != dst || dst < 1) report("must go from as many blocks, not from " + counts());
        break;
      case OpKind::reduce:
        if (dst < 1 || src < 1 || src % dst != 0)
          report("must go from a multiple of its blocks, not from " + counts());
        break;
    }
    for (const Blocks& run : plan_.dst(op))
      if (run.buffer == Buffer::input) {
        report("writes " + blockName(run.buffer, run.first) + "; inputs are read only");
        break;
      }
  }

  void checkDeps(const Op& op) {
    if (op.kind == OpKind::recv && op.deps.count > 0)
      report("is a receive and must depend on nothing");
    for (OpRange range : plan_.deps(op)) {
      if (range.first < 0 || range.count < 1 ||
          static_cast<std::int64_t>(range.first) + range.count > op_) {
        report("depends on ops " + std::to_string(range.first) + ".." +
               std::to_string(static_cast<std::int64_t>(range.first) + range.count - 1) +
               "; a dependency must come earlier in the plan");
        continue;
      }
      for (int d = range.first; d < range.first + range.count; ++d) {
        const Op& dep = plan_.ops[d];
        if (dep.lane == op.lane && dep.step >= op.step) {
          report("in step " + std::to_string(op.step) + " depends on op " + std::to_string(d) +
                 " (" + describe(plan_, d) + ") in step " + std::to_string(dep.step) +
                 " of its own lane; it must be an earlier step");
          break;
        }
      }
    }
  }

  Job& job_;
  const int rank_;
  const Plan& plan_;
  int op_ = 0;
};

}  // namespace

void checkShape(Job& job) {
  for (int rank = 0; rank < job.ranks() && !job.full(); ++rank) ShapeCheck(job, rank).run();
}

}  // namespace moeccl::verification
