// The places of experts: which of a token's choices are kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace moeccl {

struct CapacityShape {
  std::int32_t experts;
  std::int32_t choices;
  std::int64_t groupTokens;  // tokens per capacity group; the last groups may have fewer
  std::int64_t groupSlots;   // places per expert and capacity group
};

// Gives places to the choices of consecutive capacity groups: within a group to first choices
// before second ones, in token order, as long as there are any. chosen [tokens][choices]: experts,
// or -1 for no choice. slots [tokens][choices]: the place within the expert, group * groupSlots +
// 0, 1, ..., or -1 for a choice without a place and for none. used [groups][experts]: places given;
// set, not added to. tokens <= groups * groupTokens.
void assignSlots(const CapacityShape& shape, const std::int32_t* chosen, std::int64_t tokens,
                 std::int64_t groups, std::int64_t* used, std::int64_t* slots);

namespace cuda {

// The same on a stream of a GPU, whose addresses all are. The workspace, of so many bytes, begins
// at a multiple of 8 and is free again when the stream is past the call. Throws Error.
std::size_t assignSlotsWorkspace(const CapacityShape& shape, std::int64_t tokens,
                                 std::int64_t groups);
void assignSlots(const CapacityShape& shape, const std::int32_t* chosen, std::int64_t tokens,
                 std::int64_t groups, std::int64_t* used, std::int64_t* slots,
                 std::span<std::byte> workspace, void* stream);

}  // namespace cuda
}  // namespace moeccl
