// Where a plan's blocks lie in memory during one call, and which bytes its ops therefore move: what
// all executors do alike.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "algorithms/extents.h"
#include "algorithms/plan.h"
#include "kernels/copy.h"
#include "kernels/weigh.h"
#include "moeccl/moeccl.h"
#include "src/exec/content.h"

namespace moeccl {

// What a plan runs on.
struct Operands {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  Extents inputExtents = Extents::uniform(0);
  Extents outputExtents = Extents::uniform(0);
  Extents scratchExtents = Extents::uniform(0);
  std::size_t scratchBytes = 0;
  moecclDataType_t datatype = moecclUint8;  // for reductions
  moecclRedOp_t op = moecclSum;
  // Sums are of blocks times their weights, by block of the input and of the scratch; 1 beyond the
  // lists. None: no sum is weighted.
  std::span<const float> inputWeights = {}, scratchWeights = {};

  // Blocks of the output that nothing is written to: they become zeros.
  std::span<const std::int32_t> zeros = {};
  // The input is made first, of these gradients' weights (kernels/weigh.h); null: it is there. On
  // GPUs it lies in the arena, and these weights are the host's.
  const WeighedRows* weighing = nullptr;

  // What messages hold instead of blocks; nullptr: they hold blocks.
  Content* content = nullptr;
  // Bytes that each block takes in a message, which both ends know where they do not know its size:
  // no block is larger, and scratch blocks are as large. 0: a block takes its size.
  std::size_t paddedBytes = 0;

  bool weighted() const { return !inputWeights.empty() || !scratchWeights.empty(); }
  float weightOf(Buffer buffer, std::int32_t block) const {
    const std::span<const float> weights = buffer == Buffer::input     ? inputWeights
                                           : buffer == Buffer::scratch ? scratchWeights
                                                                       : std::span<const float>{};
    const auto index = static_cast<std::size_t>(block);
    return index < weights.size() ? weights[index] : 1.0f;
  }
};

// Where a message lies: in place when its blocks follow one another, else packed in the arena.
struct MessagePlace {
  bool staged = false;
  Buffer buffer = Buffer::scratch;
  std::size_t offset = 0, bytes = 0;
  bool apart = false;  // its blocks are messages of their own, where they lie
};

// Operands, and an arena that holds the scratch and then what layOut() has taken of it.
class Placement {
 public:
  Operands operands;
  std::byte* arena = nullptr;

  const Extents& extents(Buffer buffer) const {
    return buffer == Buffer::input    ? operands.inputExtents
           : buffer == Buffer::output ? operands.outputExtents
                                      : operands.scratchExtents;
  }
  // A buffer of nothing but empty blocks may be null, whatever their offsets.
  std::byte* at(Buffer buffer, Extent where) const {
    return base(buffer) + (where.bytes == 0 ? 0 : where.offset);
  }
  std::byte* at(const Blocks& run, std::int32_t index) const {
    return at(run.buffer, extents(run.buffer)[run[index]]);
  }
  // nullptr for an empty message.
  std::byte* data(const MessagePlace& message) const {
    if (message.bytes == 0) return nullptr;
    return (message.staged ? arena : base(message.buffer)) + message.offset;
  }
  // The bytes of a message of these blocks.
  std::size_t bytesIn(std::span<const Blocks> runs) const;

  // The arena's bytes before any message, and where a message of these blocks lies: what it needs
  // of the arena begins at *arenaBytes, which grows.
  std::size_t scratchBytes() const { return aligned(operands.scratchBytes); }
  static std::size_t aligned(std::size_t bytes);
  MessagePlace layOut(std::span<const Blocks> runs, std::size_t* arenaBytes) const;
  // The same for a message of so many bytes at most.
  MessagePlace layOut(std::size_t bytes, std::size_t* arenaBytes) const;

  // Each calls copy(const BlockCopy&) for what has to be copied: blocks to a staged message, a
  // staged message to its blocks, blocks to blocks.
  template <typename Copy>
  void pack(std::byte* to, std::span<const Blocks> runs, const Copy& copy) const;
  template <typename Copy>
  void unpack(const std::byte* from, std::span<const Blocks> runs, const Copy& copy) const;
  template <typename Copy>
  void move(std::span<const Blocks> from, std::span<const Blocks> to, const Copy& copy) const;

 private:
  std::byte* base(Buffer buffer) const;
  bool contiguous(std::span<const Blocks> runs) const;
  // The bytes of a message that a block of so many bytes takes.
  std::size_t padded(std::size_t bytes) const {
    return operands.paddedBytes > 0 ? operands.paddedBytes : bytes;
  }
  // Calls part(where, stride, bytes, count) for blocks at equal distances, in order.
  template <typename Part>
  void forEachPart(std::span<const Blocks> runs, const Part& part) const;
};

template <typename Part>
void Placement::forEachPart(std::span<const Blocks> runs, const Part& part) const {
  for (const Blocks& run : runs) {
    const Extents& where = extents(run.buffer);
    if (where.isUniform()) {
      const std::size_t bytes = where[0].bytes;
      part(at(run, 0), static_cast<std::ptrdiff_t>(bytes) * run.stride, bytes, run.count);
      continue;
    }
    for (int i = 0; i < run.count; ++i) part(at(run, i), 0, where[run[i]].bytes, 1);
  }
}

template <typename Copy>
void Placement::pack(std::byte* to, std::span<const Blocks> runs, const Copy& copy) const {
  forEachPart(runs,
              [&](const std::byte* from, std::ptrdiff_t stride, std::size_t bytes, int count) {
                const std::size_t step = padded(bytes);
                copy(BlockCopy{to, static_cast<std::ptrdiff_t>(step), from, stride, bytes, count});
                to += step * static_cast<std::size_t>(count);
              });
}

template <typename Copy>
void Placement::unpack(const std::byte* from, std::span<const Blocks> runs,
                       const Copy& copy) const {
  forEachPart(runs, [&](std::byte* to, std::ptrdiff_t stride, std::size_t bytes, int count) {
    const std::size_t step = padded(bytes);
    copy(BlockCopy{to, stride, from, static_cast<std::ptrdiff_t>(step), bytes, count});
    from += step * static_cast<std::size_t>(count);
  });
}

template <typename Copy>
void Placement::move(std::span<const Blocks> from, std::span<const Blocks> to,
                     const Copy& copy) const {
  // Walks both lists at once; each step copies as many blocks as both runs still have.
  std::size_t f = 0, t = 0;
  int fromUsed = 0, toUsed = 0;
  while (f < from.size() && t < to.size()) {
    const int count = std::min(from[f].count - fromUsed, to[t].count - toUsed);
    const Extents &fromWhere = extents(from[f].buffer), &toWhere = extents(to[t].buffer);
    const bool uniform = fromWhere.isUniform() && toWhere.isUniform();
    for (int i = 0; i < count; i += uniform ? count : 1) {
      // They differ where the one in scratch is padded.
      const std::size_t bytes =
          std::min(fromWhere[from[f][fromUsed + i]].bytes, toWhere[to[t][toUsed + i]].bytes);
      const auto step = static_cast<std::ptrdiff_t>(bytes);
      copy(BlockCopy{at(to[t], toUsed + i), step * to[t].stride, at(from[f], fromUsed + i),
                     step * from[f].stride, bytes, uniform ? count : 1});
    }
    if ((fromUsed += count) == from[f].count) ++f, fromUsed = 0;
    if ((toUsed += count) == to[t].count) ++t, toUsed = 0;
  }
}

}  // namespace moeccl
