#include "src/exec/host_run.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/copy.h"
#include "kernels/reduce.h"

namespace moeccl {
namespace {

constexpr std::size_t kAlignment = 64;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

HostRun::HostRun(std::shared_ptr<const PreparedPlan> plan) : plan_(std::move(plan)) {
  const std::size_t ops = plan_->plan().ops.size();
  transfers_.resize(ops);
  for (std::size_t i = 0; i < ops; ++i) {
    transfers_[i].done = &HostRun::transferDone;
    transfers_[i].run = this;
    transfers_[i].op = static_cast<std::int32_t>(i);
  }
  waitsFor_.resize(ops);
  ready_.reserve(ops);
  std::int64_t widest = 0;
  for (const Op& op : plan_->plan().ops)
    if (op.kind == OpKind::reduce) widest = std::max(widest, blockCount(plan_->plan().src(op)));
  sources_.reserve(static_cast<std::size_t>(widest));
}

const Extents& HostRun::extents(Buffer buffer) const {
  switch (buffer) {
    case Buffer::input:
      return operands_.inputExtents;
    case Buffer::output:
      return operands_.outputExtents;
    default:
      return operands_.scratchExtents;
  }
}

std::byte* HostRun::base(Buffer buffer) const {
  switch (buffer) {
    case Buffer::input:
      return const_cast<std::byte*>(operands_.input);
    case Buffer::output:
      return operands_.output;
    default:
      return arena_.get();
  }
}

// A buffer of nothing but empty blocks may be null, whatever their offsets.
std::byte* HostRun::at(Buffer buffer, Extent where) const {
  return base(buffer) + (where.bytes == 0 ? 0 : where.offset);
}

std::size_t HostRun::bytesIn(std::span<const Blocks> runs) const {
  std::size_t bytes = 0;
  for (const Blocks& run : runs) {
    const Extents& where = extents(run.buffer);
    if (where.isUniform()) {
      bytes += where[0].bytes * static_cast<std::size_t>(run.count);
    } else {
      for (int i = 0; i < run.count; ++i) bytes += where[run[i]].bytes;
    }
  }
  return bytes;
}

bool HostRun::contiguous(std::span<const Blocks> runs) const {
  const Extents& where = extents(runs[0].buffer);
  std::size_t end = where[runs[0].first].offset;
  for (const Blocks& run : runs) {
    if (run.buffer != runs[0].buffer || where[run.first].offset != end) return false;
    if (where.isUniform() && (run.stride == 1 || run.count == 1)) {
      end = where[run[run.count - 1]].end();
      continue;
    }
    for (int i = 0; i < run.count; ++i) {
      const Extent extent = where[run[i]];
      if (extent.offset != end) return false;
      end = extent.end();
    }
  }
  return true;
}

std::byte* HostRun::data(const OpTransfer& transfer) const {
  if (transfer.bytes == 0) return nullptr;
  return (transfer.staged ? arena_.get() : base(transfer.buffer)) + transfer.offset;
}

void HostRun::pack(std::byte* to, std::span<const Blocks> runs) const {
  for (const Blocks& run : runs) {
    const Extents& where = extents(run.buffer);
    if (where.isUniform()) {
      const std::size_t bytes = where[0].bytes;
      copyBlocks(to, static_cast<std::ptrdiff_t>(bytes), at(run.buffer, where[run.first]),
                 static_cast<std::ptrdiff_t>(bytes) * run.stride, bytes, run.count);
      to += bytes * static_cast<std::size_t>(run.count);
      continue;
    }
    for (int i = 0; i < run.count; ++i) {
      const Extent extent = where[run[i]];
      copyBlocks(to, 0, at(run.buffer, extent), 0, extent.bytes, 1);
      to += extent.bytes;
    }
  }
}

void HostRun::unpack(const std::byte* from, std::span<const Blocks> runs) const {
  for (const Blocks& run : runs) {
    const Extents& where = extents(run.buffer);
    if (where.isUniform()) {
      const std::size_t bytes = where[0].bytes;
      copyBlocks(at(run.buffer, where[run.first]), static_cast<std::ptrdiff_t>(bytes) * run.stride,
                 from, static_cast<std::ptrdiff_t>(bytes), bytes, run.count);
      from += bytes * static_cast<std::size_t>(run.count);
      continue;
    }
    for (int i = 0; i < run.count; ++i) {
      const Extent extent = where[run[i]];
      copyBlocks(at(run.buffer, extent), 0, from, 0, extent.bytes, 1);
      from += extent.bytes;
    }
  }
}

void HostRun::copy(const Op& op) const {
  // Walks both lists at once; each step copies as many blocks as both runs still have.
  const std::span<const Blocks> from = plan_->plan().src(op), to = plan_->plan().dst(op);
  std::size_t f = 0, t = 0;
  int fromUsed = 0, toUsed = 0;
  while (f < from.size() && t < to.size()) {
    const int count = std::min(from[f].count - fromUsed, to[t].count - toUsed);
    const Extents &fromWhere = extents(from[f].buffer), &toWhere = extents(to[t].buffer);
    const bool uniform = fromWhere.isUniform() && toWhere.isUniform();
    for (int i = 0; i < count; i += uniform ? count : 1) {
      const Extent source = fromWhere[from[f][fromUsed + i]];
      const Extent target = toWhere[to[t][toUsed + i]];
      const auto bytes = static_cast<std::ptrdiff_t>(source.bytes);
      copyBlocks(at(to[t].buffer, target), bytes * to[t].stride, at(from[f].buffer, source),
                 bytes * from[f].stride, source.bytes, uniform ? count : 1);
    }
    if ((fromUsed += count) == from[f].count) ++f, fromUsed = 0;
    if ((toUsed += count) == to[t].count) ++t, toUsed = 0;
  }
}

void HostRun::reduce(const Op& op) {
  const std::span<const Blocks> from = plan_->plan().src(op), to = plan_->plan().dst(op);
  sources_.clear();
  for (const Blocks& run : from)
    for (int i = 0; i < run.count; ++i)
      sources_.push_back(at(run.buffer, extents(run.buffer)[run[i]]));
  const auto blocks = static_cast<std::size_t>(blockCount(to));
  std::size_t block = 0;
  for (const Blocks& run : to)
    for (int i = 0; i < run.count; ++i, ++block) {
      const Extent target = extents(run.buffer)[run[i]];
      moeccl::reduce(operands_.op, operands_.datatype, at(run.buffer, target),
                     sources_.data() + block, blocks, sources_.size() / blocks, target.bytes);
    }
}

void HostRun::layOut(OpTransfer& transfer, std::span<const Blocks> runs, std::size_t* arena) const {
  transfer.bytes = bytesIn(runs);
  transfer.staged = transfer.bytes > 0 && !contiguous(runs);
  if (transfer.staged) {
    transfer.offset = *arena;
    *arena += aligned(transfer.bytes);
  } else if (transfer.bytes > 0) {
    transfer.buffer = runs[0].buffer;
    transfer.offset = extents(transfer.buffer)[runs[0].first].offset;
  }
}

void HostRun::start(const Route& route, const Operands& operands) {
  route_ = route;
  operands_ = operands;
  failed_ = false;
  failure_ = {};
  const Plan& plan = plan_->plan();

  std::size_t arena = aligned(operands.scratchBytes);
  for (OpTransfer& transfer : transfers_) {
    const Op& op = plan.ops[transfer.op];
    if (op.kind == OpKind::send) layOut(transfer, plan.src(op), &arena);
    if (op.kind == OpKind::recv) layOut(transfer, plan.dst(op), &arena);
  }
  if (arena > arenaBytes_) {
    arena_ = std::make_unique_for_overwrite<std::byte[]>(arena);
    arenaBytes_ = arena;
  }

  if (route.trace != nullptr) began_.resize(plan.ops.size());
  unfinished_ = plan_->ops();
  inFlight_ = 0;
  std::copy(plan_->waitsFor().begin(), plan_->waitsFor().end(), waitsFor_.begin());
  ready_.clear();
  readyHead_ = 0;
  draining_ = true;  // completions only queue what they release until everything is posted
  for (int op : plan_->receives()) {
    if (failed_) break;
    execute(op);
  }
  ready_.insert(ready_.end(), plan_->first().begin(), plan_->first().end());
  draining_ = false;
  drain();
}

void HostRun::execute(int op) {
  const Op& what = plan_->plan().ops[op];
  OpTransfer& transfer = transfers_[op];
  if (route_.trace != nullptr) began_[op] = Trace::Clock::now();
  switch (what.kind) {
    case OpKind::copy:
      copy(what);
      completed(op);
      return;
    case OpKind::reduce:
      reduce(what);
      completed(op);
      return;
    case OpKind::send:
    case OpKind::recv:
      break;
  }
  TagFields tag = route_.tag;
  tag.lane = static_cast<std::uint32_t>(what.lane);
  tag.sequence = static_cast<std::uint32_t>(plan_->sequence(op));
  const int peer = route_.transportRank[what.peer];
  transfer.active = true;
  ++inFlight_;
  if (what.kind == OpKind::send) {
    if (transfer.staged) pack(data(transfer), plan_->plan().src(what));
    route_.transport->send(peer, makeTag(tag), data(transfer), transfer.bytes, &transfer);
  } else {
    tag.source = static_cast<std::uint32_t>(peer);
    route_.transport->recv(peer, makeTag(tag), data(transfer), transfer.bytes, &transfer);
  }
}

void HostRun::transferDone(Transfer* self, TransferStatus status, std::size_t bytes) {
  auto* transfer = static_cast<OpTransfer*>(self);
  HostRun& run = *transfer->run;
  transfer->active = false;
  --run.inFlight_;
  if (run.failed_) return;
  const Op& op = run.plan_->plan().ops[transfer->op];
  const bool isRecv = op.kind == OpKind::recv;
  if (status != TransferStatus::ok || (isRecv && bytes != transfer->bytes)) {
    const bool explained =
        status == TransferStatus::unreachable || status == TransferStatus::failed;
    run.fail({status, transfer->op, op.peer, transfer->bytes, bytes,
              explained ? run.route_.transport->lastError() : std::string()});
    return;
  }
  if (isRecv && transfer->staged) run.unpack(run.data(*transfer), run.plan_->plan().dst(op));
  run.completed(transfer->op);
  run.drain();
}

void HostRun::record(int op) const {
  const Plan& plan = plan_->plan();
  const Op& what = plan.ops[op];
  const std::span<const Blocks> blocks = plan.src(what).empty() ? plan.dst(what) : plan.src(what);
  route_.trace->add(route_.traceLabel, route_.tag.comm, route_.tag.call, plan, op, bytesIn(blocks),
                    began_[op], Trace::Clock::now());
}

void HostRun::completed(int op) {
  --unfinished_;
  if (route_.trace != nullptr) record(op);
  for (int next : plan_->successors(op))
    if (--waitsFor_[next] == 0) ready_.push_back(next);
}

void HostRun::drain() {
  if (draining_) return;
  draining_ = true;
  while (readyHead_ < ready_.size() && !failed_) execute(ready_[readyHead_++]);
  draining_ = false;
}

void HostRun::fail(const RunFailure& failure) {
  failure_ = failure;
  cancel();
}

void HostRun::cancel() {
  failed_ = true;
  for (OpTransfer& transfer : transfers_)
    if (transfer.active) route_.transport->cancel(&transfer);
}

std::vector<int> HostRun::awaitedPeers() const {
  std::vector<int> peers;
  for (const OpTransfer& transfer : transfers_) {
    const Op& op = plan_->plan().ops[transfer.op];
    if (transfer.active && op.kind == OpKind::recv) peers.push_back(op.peer);
  }
  std::ranges::sort(peers);
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

}  // namespace moeccl
