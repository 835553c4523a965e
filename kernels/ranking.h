// Places by counting: every entry's rank among those of its group that have the same expert.
// Entries are cut into chunks, each one's warp counts by itself, a prefix sum over chunks says
// where each begins, and the warp goes through its chunk once more (as DeepSpeed-MoE 5.4 does it,
// with one scan for all experts). Nothing here needs a GPU, so that it is tested on hosts.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/device.h"
#include "kernels/lanes.h"

namespace moeccl {

constexpr std::int64_t kChunkEntries = 256;

// The choices of `tokens` tokens. Ranked within consecutive groups of groupTokens tokens: first
// choices before second ones, each in token order.
struct Entries {
  const std::int32_t* experts;  // [tokens][choices]; -1: none
  const std::int64_t* slots;    // [tokens][choices] or null; -1: none either
  std::int64_t tokens, groupTokens;
  std::int32_t choices, expertCount;
  std::int64_t groups, groupChunks;

  MOECCL_DEVICE std::int64_t chunks() const { return groups * groupChunks; }
  // The number of counts, and of elements of the prefix sum but for the total behind it.
  MOECCL_DEVICE std::int64_t counters() const { return chunks() * expertCount; }
  // Group by group, expert by expert, chunk by chunk.
  MOECCL_DEVICE std::int64_t counter(std::int64_t chunk, std::int64_t expert) const {
    const std::int64_t group = chunk / groupChunks;
    return (group * expertCount + expert) * groupChunks + (chunk - group * groupChunks);
  }
  MOECCL_DEVICE std::int64_t groupOf(std::int64_t chunk) const { return chunk / groupChunks; }
};

inline Entries entriesOf(const std::int32_t* experts, const std::int64_t* slots,
                         std::int64_t tokens, std::int32_t choices, std::int32_t expertCount,
                         std::int64_t groupTokens, std::int64_t groups) {
  const std::int64_t most = std::min(groupTokens, tokens) * choices;
  const std::int64_t chunks = std::max<std::int64_t>((most + kChunkEntries - 1) / kChunkEntries, 1);
  return {experts, slots, tokens, groupTokens, choices, expertCount, groups, chunks};
}

// Calls function(at, expert) for the entries of a chunk, in order, as many at a time as there are
// lanes; expert -1 for no entry. All lanes come to one call of it, as they must to a match.
template <typename Lanes, typename Function>
MOECCL_DEVICE void eachEntry(const Lanes& lanes, const Entries& entries, std::int64_t chunk,
                             Function function) {
  const std::int64_t group = entries.groupOf(chunk);
  const std::int64_t begin = group * entries.groupTokens;
  const std::int64_t left = entries.tokens - begin;
  const std::int64_t tokens = left < 0                     ? 0
                              : left < entries.groupTokens ? left
                                                           : entries.groupTokens;
  const std::int64_t first = (chunk - group * entries.groupChunks) * kChunkEntries;
  const std::int64_t behind = tokens * entries.choices - first;
  const std::int64_t count = behind < kChunkEntries ? behind : kChunkEntries;
  for (std::int64_t i = 0; i < count; i += Lanes::kCount) {
    std::int64_t at = -1;
    std::int32_t expert = -1;
    if (i + lanes.index() < count) {
      const std::int64_t entry = first + i + lanes.index();
      const std::int64_t choice = entry / tokens;
      at = (begin + entry - choice * tokens) * entries.choices + choice;
      if (entries.slots == nullptr || entries.slots[at] >= 0) expert = entries.experts[at];
    }
    function(at, expert);
  }
}

// Sets the chunk's counts [counters].
template <typename Lanes>
MOECCL_DEVICE void countChunk(const Lanes& lanes, const Entries& entries, std::int64_t chunk,
                              std::int64_t* counts) {
  each(lanes, entries.expertCount,
       [&](std::int64_t expert) { counts[entries.counter(chunk, expert)] = 0; });
  lanes.sync();
  eachEntry(lanes, entries, chunk, [&](std::int64_t, std::int32_t expert) {
    const Match match = lanes.match(expert);
    if (expert >= 0 && match.before == 0) counts[entries.counter(chunk, expert)] += match.all;
    lanes.sync();
  });
}

// Calls place(at, expert, rank) for the chunk's entries, rank -1 for none; it is the rank in the
// prefix sum, over all groups and experts. sums [counters + 1]: the prefix sum of counts. counts
// are used up.
template <typename Lanes, typename Function>
MOECCL_DEVICE void rankChunk(const Lanes& lanes, const Entries& entries, std::int64_t chunk,
                             const std::int64_t* sums, std::int64_t* counts, Function place) {
  eachEntry(lanes, entries, chunk, [&](std::int64_t at, std::int32_t expert) {
    const Match match = lanes.match(expert);
    std::int64_t rank = -1, left = 0;
    if (expert >= 0) {
      const std::int64_t counter = entries.counter(chunk, expert);
      left = counts[counter];
      rank = sums[counter + 1] - left + match.before;
    }
    lanes.sync();
    if (expert >= 0 && match.before == 0) counts[entries.counter(chunk, expert)] = left - match.all;
    lanes.sync();
    if (at >= 0) place(at, expert, rank);
  });
}

// The beginning of the ranks of a group and expert in the prefix sum, and how many there are.
MOECCL_DEVICE inline std::int64_t firstRank(const Entries& entries, std::int64_t group,
                                            std::int64_t expert, const std::int64_t* sums) {
  return sums[(group * entries.expertCount + expert) * entries.groupChunks];
}
MOECCL_DEVICE inline std::int64_t rankCount(const Entries& entries, std::int64_t group,
                                            std::int64_t expert, const std::int64_t* sums) {
  return firstRank(entries, group, expert + 1, sums) - firstRank(entries, group, expert, sums);
}

}  // namespace moeccl
