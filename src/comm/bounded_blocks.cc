// A message is the sizes of its blocks, of 64 bits each, and then their bytes. A block in scratch
// stays where its message is.
#include "src/comm/bounded_blocks.h"

#include <cstdint>
#include <cstring>
#include <utility>

namespace moeccl {
namespace {

using Size = std::uint64_t;

template <typename Visit>
void forEach(std::span<const Blocks> runs, const Visit& visit) {
  for (const Blocks& run : runs)
    for (std::int32_t i = 0; i < run.count; ++i) visit(run.buffer, run[i]);
}

}  // namespace

BoundedBlocks::BoundedBlocks(std::size_t most, std::vector<Extent> inputs,
                             std::vector<Extent> outputs)
    : most_(most), inputs_(std::move(inputs)), outputs_(std::move(outputs)) {}

void BoundedBlocks::begin(const Plan& plan, const std::byte* input, std::byte* output) {
  plan_ = &plan;
  input_ = input;
  output_ = output;
  scratch_.assign(plan.scratch.size(), Block{nullptr, 0});
}

std::size_t BoundedBlocks::mostBytes(const Op& op) const {
  const bool sends = op.kind == OpKind::send;
  std::size_t bytes = 0;
  forEach(sends ? plan_->src(op) : plan_->dst(op), [&](Buffer buffer, std::int32_t index) {
    const bool known = sends && buffer == Buffer::input;
    bytes += sizeof(Size) + (known ? inputs_[static_cast<std::size_t>(index)].bytes : most_);
  });
  return bytes;
}

BoundedBlocks::Block BoundedBlocks::blockOf(Buffer buffer, std::int32_t index) const {
  const auto i = static_cast<std::size_t>(index);
  if (buffer == Buffer::scratch) return scratch_[i];
  const Extent where = buffer == Buffer::input ? inputs_[i] : outputs_[i];
  const std::byte* const begin = buffer == Buffer::input ? input_ : output_;
  return {where.bytes == 0 ? nullptr : begin + where.offset, where.bytes};
}

bool BoundedBlocks::put(Buffer buffer, std::int32_t index, Block block, Misfit* misfit) {
  const auto i = static_cast<std::size_t>(index);
  if (buffer == Buffer::scratch) {
    scratch_[i] = block;
    return true;
  }
  if (block.bytes != outputs_[i].bytes) {
    *misfit = {index, outputs_[i].bytes, block.bytes};
    return false;
  }
  if (block.bytes > 0) std::memcpy(output_ + outputs_[i].offset, block.at, block.bytes);
  return true;
}

std::size_t BoundedBlocks::write(const Op& op, std::byte* to) {
  const std::byte* const begin = to;
  forEach(plan_->src(op), [&](Buffer buffer, std::int32_t index) {
    const Size size = blockOf(buffer, index).bytes;
    std::memcpy(to, &size, sizeof size);
    to += sizeof size;
  });
  forEach(plan_->src(op), [&](Buffer buffer, std::int32_t index) {
    const Block block = blockOf(buffer, index);
    if (block.bytes > 0) std::memcpy(to, block.at, block.bytes);
    to += block.bytes;
  });
  return static_cast<std::size_t>(to - begin);
}

bool BoundedBlocks::read(const Op& op, const std::byte* from, std::size_t bytes, Misfit* misfit) {
  const std::span<const Blocks> to = plan_->dst(op);
  const std::size_t head = static_cast<std::size_t>(blockCount(to)) * sizeof(Size);
  if (bytes < head) return false;
  const std::byte* const end = from + bytes;
  const std::byte* data = from + head;
  bool fits = true;
  forEach(to, [&](Buffer buffer, std::int32_t index) {
    if (!fits) return;
    Size size = 0;
    std::memcpy(&size, from, sizeof size);
    from += sizeof size;
    fits = size <= static_cast<Size>(end - data) &&
           put(buffer, index, {data, static_cast<std::size_t>(size)}, misfit);
    data += fits ? size : 0;
  });
  return fits && data == end;
}

bool BoundedBlocks::work(const Op& op, Misfit* misfit) {
  const std::span<const Blocks> to = plan_->dst(op);
  std::size_t run = 0;
  std::int32_t next = 0;
  bool fits = true;
  forEach(plan_->src(op), [&](Buffer buffer, std::int32_t index) {
    fits = fits && put(to[run].buffer, to[run][next], blockOf(buffer, index), misfit);
    if (++next == to[run].count) {
      ++run;
      next = 0;
    }
  });
  return fits;
}

}  // namespace moeccl
