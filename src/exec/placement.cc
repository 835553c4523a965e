// Counts the bytes of a message, and finds whether its blocks follow one another or must be packed.
#include "src/exec/placement.h"

#include "src/base/round_up.h"

namespace moeccl {

std::size_t Placement::aligned(std::size_t bytes) { return roundUp(bytes, std::size_t{64}); }

std::byte* Placement::base(Buffer buffer) const {
  switch (buffer) {
    case Buffer::input:
      return const_cast<std::byte*>(operands.input);
    case Buffer::output:
      return operands.output;
    default:
      return arena;
  }
}

std::size_t Placement::bytesIn(std::span<const Blocks> runs) const {
  if (operands.paddedBytes > 0)
    return operands.paddedBytes * static_cast<std::size_t>(blockCount(runs));
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

bool Placement::contiguous(std::span<const Blocks> runs) const {
  if (operands.paddedBytes > 0 && runs[0].buffer != Buffer::scratch) return false;
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

MessagePlace Placement::layOut(std::size_t bytes, std::size_t* arenaBytes) const {
  const MessagePlace message{true, Buffer::scratch, *arenaBytes, bytes};
  *arenaBytes += aligned(bytes);
  return message;
}

MessagePlace Placement::layOut(std::span<const Blocks> runs, std::size_t* arenaBytes) const {
  MessagePlace message;
  message.bytes = bytesIn(runs);
  message.staged = message.bytes > 0 && !contiguous(runs);
  if (message.staged) {
    message.offset = *arenaBytes;
    *arenaBytes += aligned(message.bytes);
  } else if (message.bytes > 0) {
    message.buffer = runs[0].buffer;
    message.offset = extents(message.buffer)[runs[0].first].offset;
  }
  return message;
}

}  // namespace moeccl
