// Executes ops as soon as those that they wait for are complete, and copies and adds up on the
// thread that completes them.
#include "src/exec/host_run.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/copy.h"
#include "kernels/reduce.h"
#include "kernels/weigh.h"

namespace moeccl {
namespace {

// As a Placement wants it.
void copyNow(const BlockCopy& copy) {
  copyBlocks(copy.dst, copy.dstStride, copy.src, copy.srcStride, copy.bytes, copy.count);
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

void HostRun::reduce(const Op& op) {
  const std::span<const Blocks> from = plan_->plan().src(op), to = plan_->plan().dst(op);
  const Operands& operands = placement_.operands;
  sources_.clear();
  weights_.clear();
  for (const Blocks& run : from)
    for (int i = 0; i < run.count; ++i) {
      sources_.push_back(placement_.at(run, i));
      if (operands.weighted()) weights_.push_back(operands.weightOf(run.buffer, run[i]));
    }
  const auto blocks = static_cast<std::size_t>(blockCount(to));
  std::size_t block = 0;
  for (const Blocks& run : to)
    for (int i = 0; i < run.count; ++i, ++block) {
      const std::size_t bytes = placement_.extents(run.buffer)[run[i]].bytes;
      if (operands.weighted())
        addWeighted(operands.datatype, placement_.at(run, i), sources_.data() + block,
                    weights_.data() + block, blocks, sources_.size() / blocks, bytes);
      else
        moeccl::reduce(operands.op, operands.datatype, placement_.at(run, i),
                       sources_.data() + block, blocks, sources_.size() / blocks, bytes);
    }
}

void HostRun::reserve(std::size_t bytes) {
  if (bytes <= arenaBytes_) return;
  arena_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
  arenaBytes_ = bytes;
}

void HostRun::layOut() {
  const Plan& plan = plan_->plan();
  const Content* const content = placement_.operands.content;
  std::size_t arena = placement_.scratchBytes();
  for (OpTransfer& transfer : transfers_) {
    const Op& op = plan.ops[transfer.op];
    if (op.kind != OpKind::send && op.kind != OpKind::recv) continue;
    transfer.place =
        content != nullptr
            ? placement_.layOut(content->mostBytes(op), &arena)
            : placement_.layOut(op.kind == OpKind::send ? plan.src(op) : plan.dst(op), &arena);
  }
  reserve(arena);
  placement_.arena = arena_.get();
}

// Returns whether the run goes on.
bool HostRun::work(int index) {
  const Op& op = plan_->plan().ops[index];
  Content::Misfit misfit{-1, 0, 0};
  if (Content* const content = placement_.operands.content; content != nullptr) {
    if (content->work(op, &misfit)) return true;
    fail(failureOf(*route_.transport, TransferStatus::ok, index, misfit.peer, misfit.expected,
                   misfit.arrived));
    return false;
  }
  if (op.kind == OpKind::copy)
    placement_.move(plan_->plan().src(op), plan_->plan().dst(op), copyNow);
  else
    reduce(op);
  return true;
}

void HostRun::start(const Route& route, const Operands& operands) {
  route_ = route;
  placement_.operands = operands;
  begin(plan_->ops());
  const Plan& plan = plan_->plan();

  if (operands.content != nullptr) operands.content->begin(plan, operands.input, operands.output);
  layOut();
  for (const std::int32_t block : operands.zeros) {
    const Extent where = operands.outputExtents[block];
    std::memset(operands.output + where.offset, 0, where.bytes);
  }
  // The input is this rank's own, where it is made.
  if (operands.weighing != nullptr)
    weighGradients(*operands.weighing,
                   reinterpret_cast<float*>(const_cast<std::byte*>(operands.input)));

  if (route.trace != nullptr) began_.resize(plan.ops.size());
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
    case OpKind::reduce:
      if (work(op)) completed(op);
      return;
    case OpKind::send:
    case OpKind::recv:
      break;
  }
  TagFields tag = route_.tag;
  tag.lane = static_cast<std::uint32_t>(what.lane);
  tag.sequence = static_cast<std::uint32_t>(plan_->sequence(op));
  const int peer = route_.transportRank[what.peer];
  std::byte* const data = placement_.data(transfer.place);
  transfer.active = true;
  ++inFlight_;
  if (what.kind == OpKind::send) {
    if (Content* const content = placement_.operands.content; content != nullptr)
      transfer.place.bytes = content->write(what, data);
    else if (transfer.place.staged)
      placement_.pack(data, plan_->plan().src(what), copyNow);
    route_.transport->send(peer, makeTag(tag), data, transfer.place.bytes, &transfer);
  } else {
    tag.source = static_cast<std::uint32_t>(peer);
    route_.transport->recv(peer, makeTag(tag), data, transfer.place.bytes, &transfer);
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
  Content::Misfit misfit{op.peer, transfer->place.bytes, bytes};
  if (status != TransferStatus::ok || (isRecv && !run.arrived(*transfer, &misfit)))
    return run.fail(failureOf(*run.route_.transport, status, transfer->op, misfit.peer,
                              misfit.expected, misfit.arrived));
  run.completed(transfer->op);
  run.drain();
}

// Takes in a message; returns whether it is as it should be.
bool HostRun::arrived(OpTransfer& transfer, Content::Misfit* misfit) {
  const Op& op = plan_->plan().ops[transfer.op];
  const std::byte* const from = placement_.data(transfer.place);
  const std::size_t bytes = misfit->arrived;
  if (placement_.operands.content != nullptr) {
    if (!placement_.operands.content->read(op, from, bytes, misfit)) return false;
    transfer.place.bytes = bytes;
    return true;
  }
  if (bytes != transfer.place.bytes) return false;
  if (transfer.place.staged) placement_.unpack(from, plan_->plan().dst(op), copyNow);
  return true;
}

void HostRun::record(int op) const {
  const Plan& plan = plan_->plan();
  const Op& what = plan.ops[op];
  const std::span<const Blocks> blocks = plan.src(what).empty() ? plan.dst(what) : plan.src(what);
  const std::size_t bytes = placement_.operands.content != nullptr ? transfers_[op].place.bytes
                                                                   : placement_.bytesIn(blocks);
  const int peer = what.peer < 0 ? -1 : route_.transportRank[what.peer];
  route_.trace->add(route_.traceLabel, route_.tag, plan,
                    {op, peer, plan_->sequence(op), bytes, began_[op], Trace::Clock::now()});
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

void HostRun::cancel() {
  failed_ = true;
  for (OpTransfer& transfer : transfers_)
    if (transfer.active) route_.transport->cancel(&transfer);
}

// A stray message differs in some bit from all messages that belong here.
bool HostRun::findStray(Tag* found) const {
  const Tag ours = makeTag(route_.tag);
  const std::uint32_t varying = plan_->messageBits() | messageNumber(1, 0, 0);
  for (int i = 0; i < kWhatBits; ++i) {
    if ((varying >> i & 1) != 0) continue;
    const Tag bit = Tag{1} << (kSourceBits + i);
    if (route_.transport->unexpected(ours ^ bit, kSameCall | bit, found)) return true;
  }
  return false;
}

std::vector<int> HostRun::peersOf(bool sends) const {
  std::vector<int> peers;
  for (const OpTransfer& transfer : transfers_) {
    const Op& op = plan_->plan().ops[transfer.op];
    if (transfer.active && (op.kind == OpKind::send) == sends) peers.push_back(op.peer);
  }
  std::ranges::sort(peers);
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

}  // namespace moeccl
