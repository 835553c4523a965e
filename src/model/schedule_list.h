// The schedules that there are, by their public numbers: 0 is auto, and from 1 on they are those of
// the registry, in its order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "algorithms/schedules/schedule_registry.h"
#include "moeccl/moe.h"

namespace moeccl {

// The number behind the last one.
int scheduleNumbers();
bool isSchedule(int number);
// "auto", or as the registry has it.
const char* nameOf(moecclSchedule_t schedule);
// Capitals or not.
std::optional<moecclSchedule_t> scheduleNamed(std::string_view name);
// "S1", "S1:chunks=2", "S1:routed", "S1:routed:chunks=2", and back.
std::string nameInChunks(moecclSchedule_t schedule, std::int64_t chunks, bool routed = false);
struct InChunks {
  moecclSchedule_t schedule;
  std::int64_t chunks;
  bool routed;
};
std::optional<InChunks> inChunksNamed(std::string_view name);
// "auto, baseline, S1, S2 or PPMoE"
std::string scheduleNames();

// These are asked about a schedule that is not auto.
const schedules::Entry& entryOf(moecclSchedule_t schedule);
schedules::Needs needsOf(moecclSchedule_t schedule);
// Whether it can be had so.
bool offers(moecclSchedule_t schedule, const schedules::Options& options);
// Whether experts see each token once from each rank of its MP group.
bool seesCopies(moecclSchedule_t schedule);
// Whether it can cut its tokens in chunks.
inline bool cutsChunks(moecclSchedule_t schedule, bool dropless, bool routed) {
  return offers(schedule, schedules::Options{.dropless = dropless, .chunks = 2, .routed = routed});
}

}  // namespace moeccl
