// Enqueues the launches of a plan in their order, each on the stream of its lane, with events
// between lanes.
#include "src/exec/nccl_run.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace moeccl {
namespace {

// From this size on a message costs less than to copy its block.
constexpr std::size_t kLargeBlock = std::size_t{256} << 10;

bool isMessage(const Op& op) { return op.kind == OpKind::send || op.kind == OpKind::recv; }

}  // namespace

NcclRun::NcclRun(std::shared_ptr<const PreparedPlan> plan)
    : plan_(std::move(plan)), order_(launchOrder(plan_->plan())) {
  if (order_.ops.size() != plan_->plan().ops.size())
    throw std::invalid_argument("a plan whose lanes wait for each other in a circle");
  places_.resize(order_.ops.size());
  dropRepeatedWaits();
  findLanes();
}

void NcclRun::dropRepeatedWaits() {
  std::array<std::array<std::int32_t, kMaxLanes>, kMaxLanes> seen;
  for (auto& lane : seen) lane.fill(-1);
  for (Launch& launch : order_.launches)
    for (int other = 0; other < kMaxLanes; ++other) {
      std::int32_t& known = seen[launch.lane][other];
      if (launch.after[other] <= known)
        launch.after[other] = -1;
      else
        known = launch.after[other];
    }
}

void NcclRun::findLanes() {
  event_.assign(order_.launches.size(), -1);
  for (const Launch& launch : order_.launches) {
    used_[launch.lane] = true;
    for (std::int32_t before : launch.after) {
      if (before < 0) continue;
      urgent_[order_.launches[before].lane] = true;
      if (event_[before] < 0) event_[before] = events_++;
    }
  }
  for (int lane = kMaxLanes - 1; lane >= 0; --lane)
    if (used_[lane] && !urgent_[lane]) callers_ = lane;
}

void NcclRun::enqueue(NcclLanes& lanes, const Operands& operands, Gpu::Stream stream) {
  NcclLanes::Needs needs;
  needs.lanes = plan_->plan().lanes;
  needs.events = events_ + 1 + kMaxLanes;
  needs.arenaBytes = layOut(operands);
  lanes.begin(stream, needs);
  placement_.arena = lanes.arena();
  prepare(lanes, stream);
  fork(lanes, stream);
  for (std::size_t i = 0; i < order_.launches.size(); ++i) launch(lanes, i);
  join(lanes, stream);
  lanes.end(stream);
}

std::size_t NcclRun::layOut(const Operands& operands) {
  placement_.operands = operands;
  const Plan& plan = plan_->plan();
  std::size_t arena = placement_.scratchBytes();
  for (std::size_t i = 0; i < plan.ops.size(); ++i)
    if (isMessage(plan.ops[i])) places_[i] = placeOf(blocksOf(plan.ops[i]), &arena);
  return arena;
}

// Sender and receiver know the same number of blocks, and of bytes.
MessagePlace NcclRun::placeOf(std::span<const Blocks> runs, std::size_t* arena) const {
  const auto blocks = static_cast<std::size_t>(blockCount(runs));
  if (blocks > 1 && placement_.operands.paddedBytes == 0)
    if (const std::size_t bytes = placement_.bytesIn(runs); bytes / blocks >= kLargeBlock)
      return {.bytes = bytes, .apart = true};
  return placement_.layOut(runs, arena);
}

void NcclRun::fork(NcclLanes& lanes, Gpu::Stream stream) {
  const Gpu::Event forked = lanes.event(events_);
  bool recorded = false;
  for (int lane = 0; lane < kMaxLanes; ++lane) {
    if (!used_[lane]) continue;
    if (lane == callers_) {
      streams_[lane] = stream;
      continue;
    }
    if (!recorded) lanes.gpu().record(forked, stream);
    recorded = true;
    streams_[lane] = lanes.stream(lane, urgent_[lane]);
    lanes.gpu().wait(streams_[lane], forked);
  }
}

void NcclRun::join(NcclLanes& lanes, Gpu::Stream stream) {
  for (int lane = 0; lane < kMaxLanes; ++lane) {
    if (!used_[lane] || lane == callers_) continue;
    const Gpu::Event joined = lanes.event(events_ + 1 + lane);
    lanes.gpu().record(joined, streams_[lane]);
    lanes.gpu().wait(stream, joined);
  }
}

void NcclRun::launch(NcclLanes& lanes, std::size_t index) {
  const Launch& launch = order_.launches[index];
  const Gpu::Stream stream = streams_[launch.lane];
  Gpu& gpu = lanes.gpu();
  for (std::int32_t before : launch.after)
    if (before >= 0) gpu.wait(stream, lanes.event(event_[before]));
  copyAndPack(gpu, index, stream);
  exchange(lanes, launch, stream);
  unpack(gpu, index, stream);
  reduce(gpu, index, stream);
  if (event_[index] >= 0) gpu.record(lanes.event(event_[index]), stream);
}

void NcclRun::copyAndPack(Gpu& gpu, std::size_t launch, Gpu::Stream stream) {
  const auto add = [&](const BlockCopy& copy) { copies_.push_back(copy); };
  const Plan& plan = plan_->plan();
  for (std::int32_t i : order_.opsOf(order_.launches[launch])) {
    if (op(i).kind == OpKind::copy) placement_.move(plan.src(op(i)), plan.dst(op(i)), add);
    if (op(i).kind == OpKind::send && places_[i].staged)
      placement_.pack(placement_.data(places_[i]), plan.src(op(i)), add);
  }
  launchCopies(gpu, stream);
}

void NcclRun::unpack(Gpu& gpu, std::size_t launch, Gpu::Stream stream) {
  const auto add = [&](const BlockCopy& copy) { copies_.push_back(copy); };
  for (std::int32_t i : order_.opsOf(order_.launches[launch]))
    if (op(i).kind == OpKind::recv && places_[i].staged)
      placement_.unpack(placement_.data(places_[i]), plan_->plan().dst(op(i)), add);
  launchCopies(gpu, stream);
}

void NcclRun::launchCopies(Gpu& gpu, Gpu::Stream stream) {
  std::erase_if(copies_, [](const BlockCopy& copy) {
    return copy.bytes == 0 || (copy.dst == copy.src && copy.dstStride == copy.srcStride);
  });
  if (!copies_.empty()) gpu.copyBlocks(copies_, stream);
  copies_.clear();
}

// Sender and receiver agree on which messages are empty, and leave them out.
void NcclRun::exchange(NcclLanes& lanes, const Launch& launch, Gpu::Stream stream) {
  const std::span<const std::int32_t> ops = order_.opsOf(launch);
  const auto hasBytes = [&](std::int32_t i) { return isMessage(op(i)) && places_[i].bytes > 0; };
  if (std::ranges::none_of(ops, hasBytes)) return;
  LaneGroup group(lanes, launch.lane, stream);
  for (std::int32_t i : ops) {
    if (!hasBytes(i)) continue;
    const auto move = [&](std::byte* data, std::size_t bytes) {
      if (op(i).kind == OpKind::send)
        group.send(data, bytes, op(i).peer);
      else
        group.recv(data, bytes, op(i).peer);
    };
    if (!places_[i].apart) {
      move(placement_.data(places_[i]), places_[i].bytes);
      continue;
    }
    for (const Blocks& run : blocksOf(op(i)))
      for (int block = 0; block < run.count; ++block)
        if (const std::size_t bytes = placement_.extents(run.buffer)[run[block]].bytes; bytes > 0)
          move(placement_.at(run, block), bytes);
  }
  group.end();
}

void NcclRun::reduce(Gpu& gpu, std::size_t launch, Gpu::Stream stream) {
  for (std::int32_t i : order_.opsOf(order_.launches[launch]))
    if (op(i).kind == OpKind::reduce) reduce(gpu, op(i), stream);
}

void NcclRun::reduce(Gpu& gpu, const Op& what, Gpu::Stream stream) {
  struct Target {
    std::byte* begin;
    std::size_t bytes;
  };
  const auto targetOf = [&](const Blocks& run, int i) {
    return Target{placement_.at(run, i), placement_.extents(run.buffer)[run[i]].bytes};
  };
  sources_.clear();
  for (const Blocks& run : plan_->plan().src(what))
    for (int i = 0; i < run.count; ++i) sources_.push_back(placement_.at(run, i));
  const std::span<const Blocks> to = plan_->plan().dst(what);
  const auto blocks = static_cast<std::size_t>(blockCount(to));
  const std::size_t terms = sources_.size() / blocks;
  const Operands& operands = placement_.operands;
  // Blocks [first, block) follow one another in memory, like their terms: one launch.
  Target pending{nullptr, 0};
  std::size_t first = 0, block = 0;
  const auto flush = [&] {
    if (pending.bytes > 0)
      gpu.reduce(operands.op, operands.datatype, pending.begin, sources_.data() + first, blocks,
                 terms, pending.bytes, stream);
  };
  const auto follows = [&](const Target& next) {
    bool together = block > 0 && next.begin == pending.begin + pending.bytes;
    for (std::size_t term = 0; together && term < terms; ++term)
      together = sources_[term * blocks + block] == sources_[term * blocks + first] + pending.bytes;
    return together;
  };
  for (const Blocks& run : to)
    for (int i = 0; i < run.count; ++i, ++block) {
      const Target next = targetOf(run, i);
      if (follows(next)) {
        pending.bytes += next.bytes;
        continue;
      }
      flush();
      pending = next;
      first = block;
    }
  flush();
}

}  // namespace moeccl
