#include "src/moe/schedule_list.h"

#include <strings.h>

#include <algorithm>

namespace moeccl {

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

}  // namespace moeccl
