// Builds plans: each op is appended with its runs of blocks and its dependencies, which go into
// pools of the plan.
#include "algorithms/plan.h"

#include <cassert>

namespace moeccl {

void BlockList::add(Blocks blocks) {
  if (blocks.count == 1) blocks.stride = 1;
  if (empty()) {
    one_ = blocks;
    return;
  }
  if (many_.empty()) {
    many_.reserve(4);
    many_.push_back(one_);
  }
  many_.push_back(blocks);
}

std::int64_t blockCount(std::span<const Blocks> runs) {
  std::int64_t count = 0;
  for (const Blocks& run : runs) count += run.count;
  return count;
}

PoolRange PlanBuilder::keep(const BlockList& list) {
  const std::span<const Blocks> runs = list.runs();
  const PoolRange range{static_cast<std::int32_t>(plan_.blockPool.size()),
                        static_cast<std::int32_t>(runs.size())};
  if (runs.size() == 1)
    plan_.blockPool.push_back(runs[0]);
  else if (!runs.empty())
    plan_.blockPool.insert(plan_.blockPool.end(), runs.begin(), runs.end());
  return range;
}

int PlanBuilder::add(OpKind kind, At at, int peer, const BlockList& src, const BlockList& dst,
                     Deps deps) {
  Op op{.kind = kind, .lane = static_cast<std::int16_t>(at.lane), .step = at.step, .peer = peer};
  op.src = keep(src);
  op.dst = keep(dst);
  op.deps.begin = static_cast<std::int32_t>(plan_.depPool.size());
  for (OpRange range : deps)
    if (range.count > 0) plan_.depPool.push_back(range);
  op.deps.count = static_cast<std::int32_t>(plan_.depPool.size()) - op.deps.begin;
  if (at.lane >= plan_.lanes) plan_.lanes = at.lane + 1;
  plan_.ops.push_back(op);
  return opCount() - 1;
}

int PlanBuilder::send(At at, int peer, const BlockList& src, Deps deps) {
  return add(OpKind::send, at, peer, src, {}, deps);
}

int PlanBuilder::recv(At at, int peer, const BlockList& dst) {
  return add(OpKind::recv, at, peer, {}, dst, {});
}

int PlanBuilder::copy(At at, const BlockList& src, const BlockList& dst, Deps deps) {
  assert(blockCount(src.runs()) == blockCount(dst.runs()));
  return add(OpKind::copy, at, -1, src, dst, deps);
}

int PlanBuilder::reduce(At at, const BlockList& src, const BlockList& dst, Deps deps) {
  assert(blockCount(src.runs()) % blockCount(dst.runs()) == 0);
  return add(OpKind::reduce, at, -1, src, dst, deps);
}

}  // namespace moeccl
