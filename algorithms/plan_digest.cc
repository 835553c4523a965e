// Mixes all that a plan holds into 64 bits: ops, blocks, dependencies, scratch, lanes and pieces.
#include "algorithms/plan.h"

namespace moeccl {
namespace {

// Each step is a bijection of what came before, so that one different value cannot be lost. Steps
// are short, because plans are long; the last one mixes all bits.
class Mixer {
 public:
  void add(std::uint64_t value) {
    state_ = (state_ ^ value) * 0xbf58476d1ce4e5b9u + 0x9e3779b97f4a7c15u;
    state_ ^= state_ >> 32;
  }
  void add(std::int32_t one, std::int32_t other) {
    add(std::uint64_t{static_cast<std::uint32_t>(one)} << 32 | static_cast<std::uint32_t>(other));
  }
  void add(PoolRange range) { add(range.begin, range.count); }
  std::uint64_t get() const {
    const std::uint64_t mixed = (state_ ^ (state_ >> 30)) * 0x94d049bb133111ebu;
    return mixed ^ (mixed >> 31);
  }

 private:
  std::uint64_t state_ = 0;
};

}  // namespace

std::uint64_t digestOf(const Plan& plan) {
  Mixer mixer;
  mixer.add(plan.ops.size());
  for (const Op& op : plan.ops) {
    mixer.add(static_cast<std::int32_t>(op.kind), op.lane);
    mixer.add(op.step, op.peer);
    for (const PoolRange& range : {op.src, op.dst, op.deps}) mixer.add(range);
  }
  mixer.add(plan.blockPool.size());
  for (const Blocks& blocks : plan.blockPool) {
    mixer.add(static_cast<std::int32_t>(blocks.buffer), blocks.first);
    mixer.add(blocks.count, blocks.stride);
  }
  mixer.add(plan.depPool.size());
  for (const OpRange& range : plan.depPool) mixer.add(range.first, range.count);
  mixer.add(plan.scratch.size());
  for (const Payload& payload : plan.scratch) mixer.add(payload.rank, payload.block);
  mixer.add(plan.lanes, plan.pieces);
  mixer.add(plan.relays);
  return mixer.get();
}

std::uint64_t digestOf(std::span<const Plan> plans) {
  Mixer mixer;
  for (const Plan& plan : plans) mixer.add(digestOf(plan));
  return mixer.get();
}

}  // namespace moeccl
