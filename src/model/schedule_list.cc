// Numbers and names the schedules of the registry. A name may end in ":routed" and ":chunks=4".
#include "src/model/schedule_list.h"

#include <strings.h>

#include <algorithm>
#include <charconv>
#include <cstring>

namespace moeccl {
namespace {

constexpr const char* kInChunks = ":chunks=";
constexpr std::string_view kRouted = ":routed";

}  // namespace

using schedules::registry;

int scheduleNumbers() { return static_cast<int>(registry().size()) + 1; }

bool isSchedule(int number) { return number >= 0 && number < scheduleNumbers(); }

const char* nameOf(moecclSchedule_t schedule) {
  return schedule == moecclScheduleAuto ? "auto" : entryOf(schedule).name.data();
}

std::optional<moecclSchedule_t> scheduleNamed(std::string_view name) {
  for (int number = 0; number < scheduleNumbers(); ++number)
    if (const auto schedule = static_cast<moecclSchedule_t>(number);
        strcasecmp(std::string(name).c_str(), nameOf(schedule)) == 0)
      return schedule;
  return std::nullopt;
}

std::string scheduleNames() {
  std::string text = nameOf(moecclScheduleAuto);
  for (int number = 1; number < scheduleNumbers(); ++number) {
    text += number + 1 < scheduleNumbers() ? ", " : " or ";
    text += nameOf(static_cast<moecclSchedule_t>(number));
  }
  return text;
}

const schedules::Entry& entryOf(moecclSchedule_t schedule) {
  return registry()[static_cast<std::size_t>(schedule) - 1];
}

schedules::Needs needsOf(moecclSchedule_t schedule) {
  return schedules::known(entryOf(schedule), Pass::forward, {}).needs;
}

bool offers(moecclSchedule_t schedule, const schedules::Options& options) {
  return schedules::offers(entryOf(schedule), options);
}

bool seesCopies(moecclSchedule_t schedule) {
  const auto& phases = schedules::known(entryOf(schedule), Pass::forward, {}).phases;
  return std::ranges::any_of(phases, &schedules::Phase::copies);
}

std::string nameInChunks(moecclSchedule_t schedule, std::int64_t chunks, bool routed) {
  std::string name = nameOf(schedule);
  if (routed) name += kRouted;
  if (chunks > 1) name += kInChunks + std::to_string(chunks);
  return name;
}

std::optional<InChunks> inChunksNamed(std::string_view name) {
  const std::size_t end = std::min(name.find(kInChunks), name.size());
  std::string_view whole = name.substr(0, end);
  const bool routed = whole.ends_with(kRouted);
  if (routed) whole.remove_suffix(kRouted.size());
  const auto schedule = scheduleNamed(whole);
  if (!schedule || *schedule == moecclScheduleAuto) return std::nullopt;
  InChunks found{*schedule, 1, routed};
  if (end == name.size()) return found;
  const std::string_view number = name.substr(end + std::strlen(kInChunks));
  const auto read = std::from_chars(number.data(), number.data() + number.size(), found.chunks);
  if (read.ec != std::errc() || read.ptr != number.data() + number.size() || found.chunks < 1)
    return std::nullopt;
  return found;
}

}  // namespace moeccl
